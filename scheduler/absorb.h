// From the results of a step to state and events: tokens become computed, sampled ones are
// appended, and what ends gives its blocks back.
#pragma once

#include "core/clock.h"
#include "core/result.h"
#include "core/step_plan.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_events.h"

#include <vector>

namespace kvasir::scheduler {

/// Requires: the plan was applied, and `result` is what its chunks asked for, in chunk order. `now`
/// is the time after execution.
[[nodiscard]] StepEvents absorb(const StepPlan& plan, StepResult result, SchedulerState& state,
                                kvcache::KvCacheManager& kv, TimePoint now);

/// The executor failed: every sequence with a chunk in the plan ends with `error`. Nothing of the
/// step is committed.
[[nodiscard]] std::vector<Finish> fail_step(const StepPlan& plan, const Error& error,
                                            SchedulerState& state, kvcache::KvCacheManager& kv);

}  // namespace kvasir::scheduler
