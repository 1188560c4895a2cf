#include "runtime/kernels/isa_tables.h"

namespace kvasir::runtime {

constinit const AttentionKernels kScalarAttention = {};

}  // namespace kvasir::runtime
