// The second half of a plan: which of the waiting begin to run in this step, with which tokens
// taken from the cache or from somebody who runs, and at what price. Internal to plan(), whose
// rules 4 to 8 it is.
#pragma once

#include "scheduler/step_draft.h"

namespace kvasir::scheduler {

/// Adds rejections, admissions and their first chunks to the draft, whose running are served.
void admit_waiting(StepDraft& draft);

}  // namespace kvasir::scheduler
