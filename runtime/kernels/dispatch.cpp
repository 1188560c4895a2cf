#include "runtime/kernels/dispatch.h"

#include "core/check.h"
#include "runtime/kernels/isa_tables.h"

#include <array>

namespace kvasir::runtime {
namespace {

constexpr std::array kCompiledIsas = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512};

const KernelTable& compiled_table(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx512:
      return kAvx512Kernels;
    case Isa::kScalar:
      break;
  }
  return kScalarKernels;
}

}  // namespace

std::span<const Isa> compiled_isas() { return kCompiledIsas; }

// The builtin also asks whether the operating system saves the wide registers.
bool cpu_supports(Isa isa) {
  const bool has_avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                        __builtin_cpu_supports("f16c") != 0;
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return has_avx2;
    case Isa::kAvx512:
      return has_avx2 && __builtin_cpu_supports("avx512f") != 0 &&
             __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
             __builtin_cpu_supports("avx512vl") != 0;
  }
  return false;
}

Isa best_isa() {
  Isa best = Isa::kScalar;
  for (const Isa isa : kCompiledIsas) {
    if (cpu_supports(isa)) best = isa;
  }
  return best;
}

const KernelTable& kernels_for(Isa isa) {
  KVASIR_CHECK(cpu_supports(isa));
  return compiled_table(isa);
}

std::string_view isa_name(Isa isa) { return compiled_table(isa).name; }

std::optional<Isa> isa_from_name(std::string_view name) {
  for (const Isa isa : kCompiledIsas) {
    if (isa_name(isa) == name) return isa;
  }
  return std::nullopt;
}

}  // namespace kvasir::runtime
