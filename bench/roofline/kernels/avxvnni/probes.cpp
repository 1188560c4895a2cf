// AVX-VNNI: what it adds to AVX2 is one 256-bit instruction for four byte products a lane.
#include "bench/roofline/probe_table.h"

#include <immintrin.h>

namespace kvasir::roofline {
namespace {

#include "bench/roofline/kernels/shared/chains.inc"

void int8_dots(std::uint64_t iterations) {
  __m256i left = _mm256_set1_epi8(3);
  __m256i right = _mm256_set1_epi8(5);
  keep(left);
  keep(right);
  run_chains(iterations, _mm256_setzero_si256(),
             [&](__m256i sum) { return _mm256_dpbusd_avx_epi32(sum, left, right); });
}

}  // namespace

const ArithmeticProbe kAvxVnniInt8Probe = {
    .run = int8_dots, .operations_per_iteration = std::uint64_t{kChains} * 32 * 2};

}  // namespace kvasir::roofline
