// A plan as one line of text, for logs, golden files and the simulator.
#pragma once

#include "core/step_plan.h"

#include <string>

namespace kvasir::scheduler {

/// "reject 9:deadline | preempt 4 | admit 7+64 | run 1@40x1* 7@64x32+2". An admission is
/// sequence+cached_tokens, <source when they are a running one's, ! when it reserves its worst
/// case; a chunk is sequence@first_position x tokens, +new stripes when there are any, * when it
/// wants logits (*row when they start before the last row). "idle" if empty.
[[nodiscard]] std::string plan_text(const StepPlan& plan);

}  // namespace kvasir::scheduler
