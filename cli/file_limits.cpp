#include "cli/file_limits.h"

#include <sys/resource.h>

namespace kvasir::cli {

std::uint64_t raise_file_limit() {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  rlimit raised = files;
  raised.rlim_cur = files.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : files.rlim_cur;
}

}  // namespace kvasir::cli
