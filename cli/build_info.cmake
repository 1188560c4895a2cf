# Run at each build: writes build_info.cpp (OUTPUT) from SOURCE_DIR, BUILD_TYPE, COMPILER and SANITIZE. The file is
# touched only when its text changes, so that nothing is compiled again without need.
set(commit "unknown")
find_program(GIT git)
# Only the checkout's own .git counts: a tarball may have been unpacked inside another repository.
if(GIT AND EXISTS "${SOURCE_DIR}/.git")
  execute_process(COMMAND ${GIT} describe --always --dirty --abbrev=12 --exclude=*
    WORKING_DIRECTORY "${SOURCE_DIR}" OUTPUT_VARIABLE described RESULT_VARIABLE failed ERROR_QUIET
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed AND described MATCHES "^[0-9a-f]+(-dirty)?$")
    set(commit "${described}")
  endif()
endif()
set(build "${BUILD_TYPE}, ${COMPILER}")
if(SANITIZE)
  string(APPEND build ", ${SANITIZE}")
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [=[
// Written by build_info.cmake.
#include "cli/build_info.h"

namespace kvasir::cli {

std::string_view build_commit() { return "@commit@"; }
std::string_view build_type() { return "@build@"; }

}  // namespace kvasir::cli
]=])
