// Which sources and which build this binary is, for GET /version and --version. The values are
// written at build time by build_info.cmake.
#pragma once

#include <string_view>

namespace kvasir::cli {

/// "1a2b3c4d5e6f", with "-dirty" behind it when tracked files differ from the commit; "unknown"
/// when the sources are no git checkout.
[[nodiscard]] std::string_view build_commit();
/// "Release, GNU 12.2.0"; sanitizers behind it.
[[nodiscard]] std::string_view build_type();

}  // namespace kvasir::cli
