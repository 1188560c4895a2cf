// The options that bound one request, as the doors and the validator take them.
#pragma once

#include "config/options.h"
#include "server/request_limits.h"

namespace kvasir::cli {

[[nodiscard]] server::RequestLimits request_limits(const config::ServeOptions& options);

}  // namespace kvasir::cli
