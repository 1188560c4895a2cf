// Judges the raw bytes of a request head before the parser sees them: what Boost.Beast lets pass
// and a strict server must not (other transfer codings, folded fields, missing or doubled Host),
// and the limits.
#pragma once

#include "core/result.h"
#include "server/http/request_reader.h"

#include <string_view>

namespace kvasir::server {

/// Bytes of which the end of the head has not been looked for yet: limits, and other protocols by
/// their first bytes.
[[nodiscard]] Result<void> check_unfinished_head(std::string_view inbox, const WireLimits& limits);
/// `block` ends with the empty line.
[[nodiscard]] Result<RequestHead> read_head(std::string_view block, const WireLimits& limits);

}  // namespace kvasir::server
