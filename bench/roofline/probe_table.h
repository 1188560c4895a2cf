// The loops that probe one instruction set, as plain function pointers. What they do is worth
// nothing; how long they take is the limit that kernels of that set are held against. Threads, time
// and repetition are roofline.h's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir::roofline {

/// Arithmetic in registers only: no memory is touched, so that nothing but the multipliers decides.
struct ArithmeticProbe {
  void (*run)(std::uint64_t iterations) = nullptr;
  std::uint64_t operations_per_iteration = 0;  // a multiply-add of one pair counts as two
};

/// Reads every byte of [data, data + bytes) once, in several streams that are prefetched.
/// Requires: data on a 64-byte boundary, bytes a multiple of kReadGranuleBytes.
using ReadProbe = void (*)(const std::byte* data, std::size_t bytes);
inline constexpr std::size_t kReadGranuleBytes = 4096;

struct ProbeTable {
  ReadProbe read = nullptr;
  ArithmeticProbe int8;  // products of bytes, summed in 32 bits
  ArithmeticProbe f32;   // fused multiply-add where the set has it
};

extern const ProbeTable kScalarProbes;
extern const ProbeTable kAvx2Probes;
extern const ArithmeticProbe kAvxVnniInt8Probe;  // all that the set adds to AVX2
extern const ProbeTable kAvx512Probes;

}  // namespace kvasir::roofline
