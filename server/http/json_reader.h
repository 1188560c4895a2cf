// The strict front for JSON bodies: limits that hold before a value is built, no duplicate keys,
// exact numbers. What the members mean is request_json's.
#pragma once

#include "core/result.h"
#include "server/request_limits.h"

#include <nlohmann/json.hpp>

#include <string_view>

namespace kvasir::server {

/// One JSON object, UTF-8, a byte order mark skipped. Integers stay int64 or uint64; what fits
/// neither is a double. Errors: kJsonTooDeep; kInvalidJson for ill-formed text or UTF-8, lone
/// surrogates, trailing bytes, numbers past a double, another top level than an object, too many
/// values, and a duplicate key at any level (named in `param`).
[[nodiscard]] Result<nlohmann::json> read_json(std::string_view text, const RequestLimits& limits);

}  // namespace kvasir::server
