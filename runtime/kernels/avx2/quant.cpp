#include "runtime/kernels/isa_tables.h"

namespace kvasir::runtime {

constinit const QuantKernels kAvx2Quant = {};

}  // namespace kvasir::runtime
