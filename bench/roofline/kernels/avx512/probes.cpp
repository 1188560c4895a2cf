// AVX-512 with VNNI: 512-bit registers, one instruction for four byte products a lane.
#include "bench/roofline/probe_table.h"

#include <immintrin.h>

namespace kvasir::roofline {
namespace {

using Bytes = __m512i;
Bytes zero_bytes() { return _mm512_setzero_si512(); }
Bytes load_bytes(const std::byte* from) { return _mm512_load_si512(from); }
Bytes add_bytes(Bytes a, Bytes b) { return _mm512_add_epi64(a, b); }

#include "bench/roofline/kernels/shared/chains.inc"
#include "bench/roofline/kernels/shared/reads.inc"

void int8_dots(std::uint64_t iterations) {
  __m512i left = _mm512_set1_epi8(3);
  __m512i right = _mm512_set1_epi8(5);
  keep(left);
  keep(right);
  run_chains(iterations, _mm512_setzero_si512(),
             [&](__m512i sum) { return _mm512_dpbusd_epi32(sum, left, right); });
}

void f32_multiply_adds(std::uint64_t iterations) {
  __m512 factor = _mm512_set1_ps(0.999F);
  __m512 addend = _mm512_set1_ps(0.001F);
  keep(factor);
  keep(addend);
  run_chains(iterations, _mm512_set1_ps(1.0F),
             [&](__m512 sum) { return _mm512_fmadd_ps(sum, factor, addend); });
}

}  // namespace

const ProbeTable kAvx512Probes = {
    .read = read_streams,
    .int8 = {.run = int8_dots, .operations_per_iteration = std::uint64_t{kChains} * 64 * 2},
    .f32 = {.run = f32_multiply_adds, .operations_per_iteration = std::uint64_t{kChains} * 16 * 2},
};

}  // namespace kvasir::roofline
