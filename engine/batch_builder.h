// From a plan to the executor's batch: the chunks with their tokens and block tables, by reference,
// and what is copied for forks. The last place where a block that is somebody else's can be kept
// from being written.
#pragma once

#include "core/step_plan.h"
#include "kvcache/kv_cache_manager.h"
#include "runtime/batch.h"
#include "scheduler/scheduler_state.h"

namespace kvasir::engine {

/// Requires: the plan was applied. The spans hold until the state or the manager changes.
[[nodiscard]] runtime::Batch build_batch(const StepPlan& plan,
                                         const scheduler::SchedulerState& state,
                                         const kvcache::KvCacheManager& kv);

}  // namespace kvasir::engine
