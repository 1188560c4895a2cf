// What the kernel tests share: the instruction sets of this machine, seeded numbers, and arithmetic
// in the order that kernel_table.h promises, written plainly so that a kernel can be compared with
// it bit by bit.
#pragma once

#include "runtime/kernels/dispatch.h"
#include "tests/support/catch.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace kvasir::runtime::testing {

/// Half an ulp of 1: the largest relative error of one rounding.
inline constexpr double kRounding = 0x1p-24;

inline std::vector<Isa> runnable_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : compiled_isas()) {
    if (cpu_supports(isa)) isas.push_back(isa);
  }
  return isas;
}

/// Calls test(table) for each set, with the set's name in every failure.
template <class Test>
void for_each_isa(Test test) {
  for (const Isa isa : runnable_isas()) {
    const KernelTable& table = kernels_for(isa);
    INFO("instruction set " << table.name);
    REQUIRE(table.isa == isa);
    test(table);
  }
}

class Numbers {
 public:
  explicit Numbers(std::uint32_t seed) : engine_(seed) {}
  std::uint32_t bits() { return static_cast<std::uint32_t>(engine_()); }
  /// In [-scale, scale).
  float uniform(float scale = 1.0F) {
    return scale * (static_cast<float>(bits() >> 8) * 0x1p-23F - 1.0F);
  }
  std::vector<float> floats(std::size_t n, float scale = 1.0F) {
    std::vector<float> values(n);
    for (float& value : values) value = uniform(scale);
    return values;
  }

 private:
  std::mt19937 engine_;
};

/// a * b + c as the set does it: rounded once with FMA, twice without.
inline float multiply_add(Isa isa, float a, float b, float c) {
  return isa == Isa::kScalar ? a * b + c : std::fma(a, b, c);
}

/// Lanes summed by the tree (j, j + 8), (j, j + 4), (j, j + 2), (j, j + 1).
inline float fold_lanes(const float (&lanes)[16]) {
  float sums[16];
  for (int j = 0; j < 16; ++j) sums[j] = lanes[j];
  for (int half = 8; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

/// The sixteen-lane dot product.
inline float dot_in_order(Isa isa, const float* a, const float* b, std::size_t n) {
  float lanes[16] = {};
  for (std::size_t i = 0; i < n; ++i) lanes[i % 16] = multiply_add(isa, a[i], b[i], lanes[i % 16]);
  return fold_lanes(lanes);
}

inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (bits_of(a[i]) != bits_of(b[i])) return false;
  }
  return true;
}

/// exp of the set, through the table.
inline float table_exp(const KernelTable& table, float x) {
  float out = 0.0F;
  table.exp_shifted(&x, 0.0F, &out, 1);
  return out;
}

}  // namespace kvasir::runtime::testing
