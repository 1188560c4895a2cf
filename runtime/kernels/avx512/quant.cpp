#include "runtime/kernels/isa_tables.h"

namespace kvasir::runtime {

constinit const QuantKernels kAvx512Quant = {};

}  // namespace kvasir::runtime
