#include "runtime/kernels/isa_tables.h"

namespace kvasir::runtime {

constinit const AttentionKernels kAvx512Attention = {};

}  // namespace kvasir::runtime
