// The table that each instruction set defines in its own file. Only dispatch.cpp reads them.
#pragma once

#include "runtime/kernels/kernel_table.h"

namespace kvasir::runtime {

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;

}  // namespace kvasir::runtime
