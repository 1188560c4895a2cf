#include "runtime/kernels/isa_tables.h"

namespace kvasir::runtime {

constinit const QuantKernels kAvxVnniQuant = {};

}  // namespace kvasir::runtime
