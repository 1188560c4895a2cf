// The AVX2 set. All code is in an anonymous namespace: compiled for this set's instructions, none
// of it may be the copy that the linker keeps for another.
#include "runtime/kernels/isa_tables.h"
#include "runtime/kernels/kernel_table.h"

#include <immintrin.h>

namespace kvasir::runtime {
namespace {

// Each file needs those before it.
// clang-format off
#include "runtime/kernels/shared/inline.inc"
#include "runtime/kernels/avx2/lanes.inc"
#include "runtime/kernels/shared/vec.inc"
#include "runtime/kernels/shared/exp.inc"
#include "runtime/kernels/shared/activation.inc"
#include "runtime/kernels/shared/dequantize.inc"
#include "runtime/kernels/shared/matmul.inc"
#include "runtime/kernels/shared/matmul_panels.inc"
#include "runtime/kernels/shared/elementwise.inc"
#include "runtime/kernels/shared/logits.inc"
#include "runtime/kernels/shared/sampling.inc"
#include "runtime/kernels/shared/table.inc"
// clang-format on

}  // namespace

constinit const KernelTable kAvx2Kernels = make_table(kAvx2Quant, kAvx2Attention);

}  // namespace kvasir::runtime
