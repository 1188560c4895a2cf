// From a plan to state and blocks: evict, then pin prefixes and fork, then allocate. It decides
// nothing and, because the plan counted, cannot fail.
#pragma once

#include "core/clock.h"
#include "core/step_plan.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_events.h"

#include <vector>

namespace kvasir::scheduler {

/// Requires: the plan was made from this very state. Returns the rejected sequences, to be reported
/// with kError. Afterwards every chunk's sequence is running and its block table covers
/// first_position + num_tokens.
[[nodiscard]] std::vector<Finish> apply(const StepPlan& plan, SchedulerState& state,
                                        kvcache::KvCacheManager& kv, TimePoint now);

/// What must be copied before the step's chunks are computed. Requires: the plan was applied, and
/// nothing of it is committed yet.
[[nodiscard]] std::vector<BlockCopy> block_copies(const StepPlan& plan,
                                                  const kvcache::KvCacheManager& kv);

}  // namespace kvasir::scheduler
