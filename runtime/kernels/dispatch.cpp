#include "runtime/kernels/dispatch.h"

#include "core/check.h"
#include "runtime/kernels/isa_tables.h"

#include <array>
#include <cpuid.h>

namespace kvasir::runtime {
namespace {

constexpr std::array kCompiledIsas = {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512};

/// The AVX2 set with other dot products: all that AVX-VNNI adds.
const KernelTable& avx_vnni_table() {
  static const KernelTable table = [] {
    KernelTable result = kAvx2Kernels;
    result.isa = Isa::kAvxVnni;
    result.name = "avxvnni";
    result.quant = &kAvxVnniQuant;
    return result;
  }();
  return table;
}

const KernelTable& compiled_table(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvxVnni:
      return avx_vnni_table();
    case Isa::kAvx512:
      return kAvx512Kernels;
    case Isa::kScalar:
      break;
  }
  return kScalarKernels;
}

/// The builtins do not know F16C (clang) and AVX-VNNI by name. What these need of the operating
/// system is what AVX2 needs.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAvxVnniBit = 1U << 4;  // leaf 7, sub-leaf 1, EAX
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (eax & kAvxVnniBit) != 0;
}

struct CpuFeatures {
  bool avx2 = false, avx_vnni = false, avx512 = false;
};

// The builtin also asks whether the operating system saves the wide registers.
CpuFeatures ask_cpu() {
  CpuFeatures features;
  features.avx2 =
      __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c();
  features.avx_vnni = features.avx2 && has_avx_vnni();
  features.avx512 =
      features.avx2 && __builtin_cpu_supports("avx512f") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
  return features;
}

}  // namespace

std::span<const Isa> compiled_isas() { return kCompiledIsas; }

// Asked once: on a virtual machine every CPUID is an exit to the hypervisor, tens of microseconds.
bool cpu_supports(Isa isa) {
  static const CpuFeatures features = ask_cpu();
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return features.avx2;
    case Isa::kAvxVnni:
      return features.avx_vnni;
    case Isa::kAvx512:
      return features.avx512;
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
