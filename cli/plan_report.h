// A plan of the calculator as a table for people. What is in it is kvcache/kv_calculator's; the
// same as JSON is server/kv_plan_json's.
#pragma once

#include "kvcache/kv_calculator.h"

#include <iosfwd>
#include <string>

namespace kvasir::cli {

/// "12.6 GiB", "512 KiB", "17 bytes": one decimal of the largest unit that fits, none where it is
/// whole.
[[nodiscard]] std::string binary_bytes_text(std::uint64_t bytes);

/// Every size in its unit and in exact bytes, the formulas, the work with and without a cache, and
/// the layer groups where layers differ or have windows.
void write_plan(const kvcache::KvPlan& plan, std::ostream& out);

}  // namespace kvasir::cli
