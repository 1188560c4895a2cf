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
/// 1. Past its deadline, or could never fit even alone (KvGeometry::blocks_for): rejected.
/// 2. Decodes take one token each. When there are more of them than max_step_tokens, those served
///    longest ago go first. Running prefills share what is left, in service order. No chunk is
///    longer than KvGeometry::largest_chunk.
/// 3. A sequence that cannot grow by a stripe of every layer group makes one behind it give way
///    (preempt), never an immune one: of the least important priority the one with the fewest
///    tokens to compute again for each block that comes free, of equal ones the latest. One whose
///    blocks all have other holders gives way only when nobody's do not, and only one such in a
///    step. With none behind it, a sequence stands still for the step. The first of the running is
///    therefore never preempted.
/// 4. A step that takes blocks back (preempts, or rejects a running one) admits nothing. Otherwise
///    the waiting are admitted in service order while tokens, sequences and blocks last; the first
///    for which there are no blocks ends the line.
/// 5. An admission costs the blocks of what it is expected to come to: its known tokens and a
///    forecast of those to generate. What the running are expected to need yet is kept from it.
///    Under AdmissionPolicy::kReserve, and after preemptions_before_reserve preemptions, it costs
///    its worst case instead, what it does not hold of that is kept for it, and it is immune. When
///    it is alone it always fits.
/// 6. Blocks of its prefix that others hold cost nothing, in groups without a window; reclaimable
///    ones cost like new ones, those from which it copies a partly shared stripe too. If it does
///    not fit with the copy, it is tried without.
/// 7. Of the running the first that has the most of its tokens is forked, where the KV cache still
///    has all that takes (can_fork) and the prefix cache has less. Choices of one prompt share it
///    in any case, others only with the prefix cache on and under the same salt. Equal hashes find
///    the tokens, the tokens decide.
/// 8. While a running one that is not less important computes its prompt (a choice of the same
///    prompt), or half a block or more that it could begin with, it waits. When the leader is gone,
///    the next one leads.
[[nodiscard]] StepPlan plan(const SchedulerState& state, const kvcache::KvView& kv,
                            const StepLimits& limits, TimePoint now);

}  // namespace kvasir::scheduler
