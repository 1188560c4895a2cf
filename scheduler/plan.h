// The heart of the scheduler: from the state and the KV counts to all decisions of one step, as a
// pure function. It allocates nothing, it subtracts; apply() then cannot run out of blocks. The
// file to read first.
#pragma once

#include "core/clock.h"
#include "core/step_plan.h"
#include "kvcache/kv_view.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_limits.h"

namespace kvasir::scheduler {

/// Rules, in the order in which they are applied:
/// 1. Past its deadline, or could never fit even alone: rejected.
/// 2. Decodes take one token each. When there are more of them than max_step_tokens, those served
///    longest ago go first. Running prefills share what is left, in service order.
/// 3. A sequence that cannot grow makes the least important non-immune one behind it give way
///    (preempt). With none behind it, it stands still for the step. The first of the running is
///    therefore never preempted.
/// 4. A step that takes blocks back (preempts, or rejects a running one) admits nothing. Otherwise
///    the waiting are admitted in service order while tokens, sequences and blocks last; the first
///    for which there are no blocks ends the line. An admission costs the blocks of all its known
///    tokens, reclaimable prefix blocks included; after preemptions_before_reserve preemptions it
///    costs its worst case, and what it does not hold of that is kept for it.
/// 5. A waiting sequence of a fork group begins as a fork of the first running one of it whose
/// cache
///    holds the prompt, where the prefix cache has less: it costs only the blocks that it does not
///    share.
/// 6. A waiting sequence whose next prefix block, or whose group's prompt, is just being computed
/// by
///    a running one that is not less important waits for it.
[[nodiscard]] StepPlan plan(const SchedulerState& state, const kvcache::KvView& kv,
                            const StepLimits& limits, TimePoint now);

}  // namespace kvasir::scheduler
