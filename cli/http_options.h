// The options of the REST door out of those of the daemon. Keys and certificates are read
// elsewhere: both doors share them.
#pragma once

#include "cli/engine_stack.h"
#include "config/options.h"
#include "server/http/http_server.h"

namespace kvasir::cli {

/// Without keys and TLS, which whoever holds them adds.
[[nodiscard]] server::HttpOptions http_options(const config::ServeOptions& options,
                                               const EngineStack& stack);

}  // namespace kvasir::cli
