// The pool as GET /v1/kv/status shows it: budget, blocks and the engine's counts at this moment.
#pragma once

#include "server/generate_service.h"

#include <string>

namespace kvasir::server {

/// JSON.
[[nodiscard]] std::string kv_status_body(const GenerateService& service);

}  // namespace kvasir::server
