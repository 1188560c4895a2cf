// The int8 products of the AVX-512 set. All code is in an anonymous namespace: compiled for this
// set's instructions, none of it may be the copy that the linker keeps for another.
#include "runtime/kernels/isa_tables.h"
#include "runtime/kernels/panel_format.h"

#include <immintrin.h>
#include <utility>

namespace kvasir::runtime {
namespace {

// Each file needs those before it.
// clang-format off
#include "runtime/kernels/shared/inline.inc"
#include "runtime/kernels/avx512/lanes.inc"
#include "runtime/kernels/shared/vec.inc"
#include "runtime/kernels/shared/exp.inc"
#include "runtime/kernels/shared/activation.inc"
#include "runtime/kernels/shared/panel_types.inc"
#include "runtime/kernels/shared/byte_sums_256.inc"
#include "runtime/kernels/avx512/quant_lanes.inc"
#include "runtime/kernels/shared/quantize.inc"
#include "runtime/kernels/shared/quant_matmul.inc"
// clang-format on

}  // namespace

constinit const QuantKernels kAvx512Quant = {
    .name = kQuantName,
    .quantized_row_bytes = quantized_row_bytes,
    .quantize_row = quantize_row,
    .silu_multiply_quantize = gate_multiply_quantize<SiluGate>,
    .gelu_multiply_quantize = gate_multiply_quantize<GeluTanhGate>,
    .scratch_bytes = scratch_bytes,
    .matmul = quant_matmul,
};

}  // namespace kvasir::runtime
