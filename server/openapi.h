// The REST interface as an OpenAPI 3.1 document: requests from the field table, routes and errors
// from theirs.
#pragma once

#include "server/validate.h"

#include <string>
#include <string_view>

namespace kvasir::server {

struct OpenApiFacts {
  std::string_view version;  // of the daemon
  ValidationBounds bounds;
  bool needs_key = false;  // the operator asks for keys
};

/// JSON text.
[[nodiscard]] std::string openapi_document(const OpenApiFacts& facts);

}  // namespace kvasir::server
