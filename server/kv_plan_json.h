// A plan as the JSON object that REST answers and `kvasir plan --json` prints.
#pragma once

#include "kvcache/kv_calculator.h"

#include <string>

namespace kvasir::server {

/// One line, members in the order of the OpenAPI document's KvPlan. Numbers are exact up to 2^53;
/// only scores without a cache can be greater, and below 2^63.
[[nodiscard]] std::string kv_plan_json(const kvcache::KvPlan& plan);

}  // namespace kvasir::server
