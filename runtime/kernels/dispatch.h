// Which instruction sets were compiled in, which this CPU has, and the table of each. Nothing is
// computed here.
#pragma once

#include "runtime/kernels/kernel_table.h"

#include <optional>
#include <span>
#include <string_view>

namespace kvasir::runtime {

[[nodiscard]] std::span<const Isa> compiled_isas();  // slowest first
[[nodiscard]] bool cpu_supports(Isa isa);
[[nodiscard]] Isa best_isa();  // the fastest that is compiled in and supported
/// Requires: compiled in and supported by this CPU.
[[nodiscard]] const KernelTable& kernels_for(Isa isa);
[[nodiscard]] std::string_view isa_name(Isa isa);  // "scalar", "avx2", "avx512"
[[nodiscard]] std::optional<Isa> isa_from_name(std::string_view name);

}  // namespace kvasir::runtime
