// AVX2 and FMA: 256-bit registers. Byte products go over 16-bit pairs, which is what makes them
// slower than the VNNI sets'.
#include "bench/roofline/probe_table.h"

#include <immintrin.h>

namespace kvasir::roofline {
namespace {

using Bytes = __m256i;
Bytes zero_bytes() { return _mm256_setzero_si256(); }
Bytes load_bytes(const std::byte* from) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}
Bytes add_bytes(Bytes a, Bytes b) { return _mm256_add_epi64(a, b); }

#include "bench/roofline/kernels/shared/chains.inc"
#include "bench/roofline/kernels/shared/reads.inc"

/// Products that may be added in 16 bits before they are widened: 4-bit weights allow so many,
/// 8 x 2 x 15 x 127 = 30 480, and no fewer may be assumed, or a kernel could beat its own limit.
constexpr int kPairsInSixteenBits = 8;

/// The products of a step are independent too, so few chains do, and no register is spilled.
constexpr int kInt8Chains = 4;

void int8_dots(std::uint64_t iterations) {
  __m256i left = _mm256_set1_epi8(3);
  __m256i right = _mm256_set1_epi8(5);
  __m256i ones = _mm256_set1_epi16(1);
  keep(right);
  keep(ones);
  run_chains<kInt8Chains>(iterations, _mm256_setzero_si256(), [&](__m256i sum) {
    keep(left);  // or the product, the same each time, would be computed once
    __m256i pairs = _mm256_maddubs_epi16(left, right);
#pragma GCC unroll 8
    for (int i = 1; i < kPairsInSixteenBits; ++i) {
      keep(left);
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(left, right));
    }
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
  });
}

void f32_multiply_adds(std::uint64_t iterations) {
  __m256 factor = _mm256_set1_ps(0.999F);
  __m256 addend = _mm256_set1_ps(0.001F);
  keep(factor);
  keep(addend);
  run_chains(iterations, _mm256_set1_ps(1.0F),
             [&](__m256 sum) { return _mm256_fmadd_ps(sum, factor, addend); });
}

}  // namespace

const ProbeTable kAvx2Probes = {
    .read = read_streams,
    .int8 = {.run = int8_dots,
             .operations_per_iteration = std::uint64_t{kInt8Chains} * kPairsInSixteenBits * 32 * 2},
    .f32 = {.run = f32_multiply_adds, .operations_per_iteration = std::uint64_t{kChains} * 8 * 2},
};

}  // namespace kvasir::roofline
