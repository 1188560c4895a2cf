// docs/API.md: the field table, the routes and the errors as a page to read.
#pragma once

#include <string>

namespace kvasir::server {

/// Bounds that are the operator's stand in it with their defaults.
[[nodiscard]] std::string api_document();

}  // namespace kvasir::server
