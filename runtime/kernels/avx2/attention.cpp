#include "runtime/kernels/isa_tables.h"

namespace kvasir::runtime {

constinit const AttentionKernels kAvx2Attention = {};

}  // namespace kvasir::runtime
