// The strict front for JSON bodies: limits that hold before a value is built, no duplicate keys,
// exact numbers. What the members mean is request_json's.
#pragma once

#include "core/result.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string_view>

namespace kvasir::server {

struct JsonLimits {
  std::size_t max_depth = 64;
  std::size_t max_values = 200'000;  // members and elements of all objects and arrays
};

/// One JSON object, UTF-8, a byte order mark skipped. Integers stay int64 or uint64; what fits
/// neither is a double. Errors: kJsonTooDeep; kInvalidJson for ill-formed text or UTF-8, lone
/// surrogates, trailing bytes, numbers past a double, another top level than an object, too many
/// values, and a duplicate key at any level (named in `param`).
[[nodiscard]] Result<nlohmann::json> read_json(std::string_view text,
                                               const JsonLimits& limits = {});

}  // namespace kvasir::server
