// What a sequence reports about itself when it ends.
#include "scheduler/sequence.h"

namespace kvasir::scheduler {

Usage usage_of(const Sequence& sequence, TimePoint now) {
  const TimePoint admitted_at = sequence.first_admitted_at.value_or(now);
  const TimePoint first_token_at = sequence.first_token_at.value_or(now);
  return {.prompt_tokens = sequence.num_prompt_tokens,
          .completion_tokens = sequence.num_generated(),
          .cached_tokens = sequence.cached_tokens,
          .computed_tokens = sequence.computed_tokens,
          .recomputed_tokens = sequence.recomputed_tokens,
          .preemptions = sequence.preemptions,
          .kv = sequence.kv,
          .attention_scores = sequence.attention_scores,
          .queue_time = admitted_at - sequence.arrived_at,
          .prefill_time = first_token_at - admitted_at,
          .decode_time = now - first_token_at};
}

}  // namespace kvasir::scheduler
