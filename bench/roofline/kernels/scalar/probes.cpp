// The baseline that every build may use, x86-64-v2: 128-bit registers, no fused multiply-add. The
// scalar kernels are plain loops, and this is the most that a compiler can make of them.
#include "bench/roofline/probe_table.h"

#include <immintrin.h>

namespace kvasir::roofline {
namespace {

using Bytes = __m128i;
Bytes zero_bytes() { return _mm_setzero_si128(); }
Bytes load_bytes(const std::byte* from) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(from));
}
Bytes add_bytes(Bytes a, Bytes b) { return _mm_add_epi64(a, b); }

#include "bench/roofline/kernels/shared/chains.inc"
#include "bench/roofline/kernels/shared/reads.inc"

/// Bytes to 16-bit pairs to 32-bit sums.
void int8_dots(std::uint64_t iterations) {
  __m128i left = _mm_set1_epi8(3);
  __m128i right = _mm_set1_epi8(5);
  __m128i ones = _mm_set1_epi16(1);
  keep(right);
  keep(ones);
  run_chains(iterations, _mm_setzero_si128(), [&](__m128i sum) {
    keep(left);  // or the product, the same each time, would be computed once
    const __m128i pairs = _mm_maddubs_epi16(left, right);
    return _mm_add_epi32(sum, _mm_madd_epi16(pairs, ones));
  });
}

void f32_multiply_adds(std::uint64_t iterations) {
  __m128 factor = _mm_set1_ps(0.999F);
  __m128 addend = _mm_set1_ps(0.001F);
  keep(factor);
  keep(addend);
  run_chains(iterations, _mm_set1_ps(1.0F),
             [&](__m128 sum) { return _mm_add_ps(_mm_mul_ps(sum, factor), addend); });
}

}  // namespace

const ProbeTable kScalarProbes = {
    .read = read_streams,
    .int8 = {.run = int8_dots, .operations_per_iteration = std::uint64_t{kChains} * 16 * 2},
    .f32 = {.run = f32_multiply_adds, .operations_per_iteration = std::uint64_t{kChains} * 4 * 2},
};

}  // namespace kvasir::roofline
