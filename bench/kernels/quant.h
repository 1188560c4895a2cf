// Speed of the products of int8 activations and weight panels (quant.cpp). What else is measured is
// main.cpp's business.
#pragma once

#include "runtime/kernels/kernel_table.h"

#include <string>

namespace kvasir::bench {

/// Prints GOPS (two a multiply-add) and the weights read per second for shapes of the models that
/// kvasir is measured with, at 1 to 512 rows of x, on this thread. `only_type` may be empty.
void bench_quant(const runtime::KernelTable& table, const std::string& only_type);

}  // namespace kvasir::bench
