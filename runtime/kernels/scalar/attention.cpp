// The scalar set's attention. All code is in an anonymous namespace: compiled for this set's
// instructions, none of it may be the copy that the linker keeps for another.
#include "runtime/kernels/isa_tables.h"

namespace kvasir::runtime {
namespace {

// Each file needs those before it.
// clang-format off
#include "runtime/kernels/shared/inline.inc"
#include "runtime/kernels/scalar/lanes.inc"
#include "runtime/kernels/shared/vec.inc"
#include "runtime/kernels/shared/exp.inc"
#include "runtime/kernels/shared/attention_tiles.inc"
#include "runtime/kernels/shared/attention.inc"
// clang-format on

}  // namespace

constinit const AttentionKernels kScalarAttention = make_attention();

}  // namespace kvasir::runtime
