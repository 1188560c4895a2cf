// The int8 products of the scalar set. All code is in an anonymous namespace: compiled for this
// set's instructions, none of it may be the copy that the linker keeps for another.
#include "runtime/kernels/isa_tables.h"
#include "runtime/kernels/panel_format.h"

namespace kvasir::runtime {
namespace {

// Each file needs those before it.
// clang-format off
#include "runtime/kernels/shared/inline.inc"
#include "runtime/kernels/scalar/lanes.inc"
#include "runtime/kernels/shared/vec.inc"
#include "runtime/kernels/shared/exp.inc"
#include "runtime/kernels/shared/activation.inc"
#include "runtime/kernels/shared/panel_types.inc"
#include "runtime/kernels/scalar/quant_lanes.inc"
#include "runtime/kernels/shared/quantize.inc"
#include "runtime/kernels/scalar/quant_matmul.inc"
// clang-format on

}  // namespace

constinit const QuantKernels kScalarQuant = {
    .name = "scalar",
    .quantized_row_bytes = quantized_row_bytes,
    .quantize_row = quantize_row,
    .silu_multiply_quantize = gate_multiply_quantize<SiluGate>,
    .gelu_multiply_quantize = gate_multiply_quantize<GeluTanhGate>,
    .scratch_bytes = scratch_bytes,
    .matmul = quant_matmul,
};

}  // namespace kvasir::runtime
