// The sampler as sampler.h describes it, with full sorts and no shortcut: what the product must
// equal. Only the exponential is the kernel's, because its last bit is the instruction set's own.
#pragma once

#include "core/step_plan.h"
#include "runtime/kernels/kernel_table.h"
#include "runtime/sampling/sampler.h"

namespace kvasir::runtime::testing {

[[nodiscard]] SampledToken sample_plainly(const KernelTable& kernels, const SampleInput& input);

}  // namespace kvasir::runtime::testing
