// What the parts of a plan have in common.
#include "scheduler/step_draft.h"

#include <algorithm>

namespace kvasir::scheduler {

StepDraft::StepDraft(const SchedulerState& step_state, const kvcache::KvView& step_kv,
                     const StepLimits& step_limits, TimePoint step_now)
    : state(step_state),
      kv(step_kv),
      limits(step_limits),
      now(step_now),
      block_tokens(step_kv.geometry().block_tokens),
      blocks_per_stripes(step_kv.geometry().blocks_per_stripes()),
      tokens_left(step_limits.max_step_tokens) {}

bool StepDraft::past_deadline(const Sequence& sequence) const {
  return sequence.deadline.has_value() && *sequence.deadline <= now;
}

std::uint32_t StepDraft::new_stripes(std::uint32_t tokens, std::uint32_t held_stripes) const {
  return static_cast<std::uint32_t>(kv.geometry().stripes_for(tokens)) - held_stripes;
}

void StepDraft::write_chunk(const Sequence& sequence, Chunk chunk) {
  const std::uint32_t end = chunk.first_position + chunk.num_tokens;
  const bool samples = sequence.generates() && end == sequence.num_tokens();
  chunk.first_logits_row = samples ? chunk.num_tokens - 1 : chunk.num_tokens;
  const std::uint32_t first_scored = std::max(sequence.num_scored_rows, chunk.first_position);
  if (first_scored < std::min(end, sequence.rows_to_score())) {
    chunk.first_logits_row = first_scored - chunk.first_position;
  }
  plan.chunks.push_back(chunk);
}

}  // namespace kvasir::scheduler
