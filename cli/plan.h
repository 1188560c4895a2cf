// `kvasir plan`: the calculator on the command line, with the fields, ranges and defaults that
// POST /v1/kv/plan has, and a model file in place of the served model.
#pragma once

#include "server/request_fields.h"

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

namespace kvasir::cli {

/// The option of a field: "kv_heads" is --kv-heads.
[[nodiscard]] std::string plan_option(std::string_view field);
/// A text of the field table or the validator with options in place of the fields that it names: at
/// its begin, after "beside", and where the name is no word of prose.
[[nodiscard]] std::string with_plan_options(const std::string& text);
/// Bytes as the budget options take them: a number, or one with KiB, MiB, GiB or TiB behind.
/// Throws StartupError naming the option.
[[nodiscard]] std::int64_t plan_bytes(const std::string& text);

/// Judges the fields and writes the plan as a table or as one line of JSON; `fields.model` is a
/// path. Throws StartupError naming the option at fault.
void run_plan(const server::PlanFields& fields, bool json, std::ostream& out);

}  // namespace kvasir::cli
