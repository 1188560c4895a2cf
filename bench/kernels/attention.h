// Speed of attention over stored K and V tiles (attention.cpp). What else is measured is main.cpp's
// business.
#pragma once

#include "runtime/kernels/kernel_table.h"

namespace kvasir::bench {

/// Prints GFLOP/s and the K and V read per second at 1 to 64 rows and 128 to 4096 positions of f16,
/// with tiles in the caches and from memory, on this thread.
void bench_attention(const runtime::KernelTable& table);

}  // namespace kvasir::bench
