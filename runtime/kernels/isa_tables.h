// The tables that each instruction set defines in its own files. Only dispatch.cpp reads the last;
// the others are parts of them.
#pragma once

#include "runtime/kernels/kernel_table.h"

namespace kvasir::runtime {

extern const QuantKernels kScalarQuant;
extern const QuantKernels kAvx2Quant;
extern const QuantKernels kAvxVnniQuant;
extern const QuantKernels kAvx512Quant;

extern const AttentionKernels kScalarAttention;
extern const AttentionKernels kAvx2Attention;
extern const AttentionKernels kAvx512Attention;

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;

}  // namespace kvasir::runtime
