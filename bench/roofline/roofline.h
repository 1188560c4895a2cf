// What this machine can do at most with a number of threads: bytes read per second, byte products
// and float multiply-adds per second in one instruction set, and how often threads can meet.
// Kernels are held against these figures; whose share of them a model gets is the bench command's
// business.
#pragma once

#include "runtime/kernels/kernel_table.h"

#include <cstdint>
#include <vector>

namespace kvasir::roofline {

/// Larger than the last-level cache of most machines, so that it comes from memory.
inline constexpr std::uint64_t kDefaultReadBytes = 256ULL << 20U;

struct RooflineOptions {
  runtime::Isa isa = runtime::Isa::kScalar;
  std::uint32_t num_threads = 1;
  /// What one pass reads, all threads together, once for each size; rounded up to whole pages of
  /// each thread. With the bytes of a model's step the figure is that model's, caches included.
  std::vector<std::uint64_t> read_bytes = {kDefaultReadBytes};
};

/// Of five short runs.
struct Rate {
  double median = 0.0, min = 0.0, max = 0.0;
};

struct Reading {
  std::uint64_t bytes = 0;  // of one pass, as rounded
  Rate bytes_per_second;
};

struct Roofline {
  std::vector<Reading> readings;  // in the order of read_bytes
  Rate int8_ops_per_second;       // a multiply and an add are two
  Rate f32_flops_per_second;      // likewise
  Rate barriers_per_second;       // at which the product's workers meet between phases of a step
  bool pinned = false;            // each thread had a CPU to itself
};

/// Takes about half a second, and a quarter more for each size. Threads are the function's own,
/// each pinned to one CPU of the affinity mask where there are enough. Requires: the CPU supports
/// `isa`.   Errors: std::bad_alloc, and std::system_error when the system allows no more threads.
[[nodiscard]] Roofline measure_roofline(const RooflineOptions& options);

}  // namespace kvasir::roofline
