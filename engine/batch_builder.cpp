#include "engine/batch_builder.h"

#include "core/check.h"
#include "scheduler/apply.h"

namespace kvasir::engine {

runtime::Batch build_batch(const StepPlan& plan, const scheduler::SchedulerState& state,
                           const kvcache::KvCacheManager& kv) {
  runtime::Batch batch;
  batch.copies = scheduler::block_copies(plan, kv);
  batch.chunks.reserve(plan.chunks.size());
  for (const Chunk& chunk : plan.chunks) {
    const scheduler::Sequence* sequence = state.find(chunk.sequence);
    KVASIR_CHECK(sequence != nullptr,
                 "sequence " << value_of(chunk.sequence) << " is planned but unknown");
    kv.check_may_write(chunk.sequence, chunk.num_tokens);
    batch.chunks.push_back(runtime::BatchChunk{.sequence = chunk.sequence,
                                               .first_position = chunk.first_position,
                                               .num_tokens = chunk.num_tokens,
                                               .first_logits_row = chunk.first_logits_row,
                                               .tokens = sequence->tokens,
                                               .num_prompt_tokens = sequence->num_prompt_tokens,
                                               .block_tables = {},
                                               .request = sequence->request.get()});
    for (std::size_t group = 0; group < kv.geometry().groups.size(); ++group) {
      batch.chunks.back().block_tables[group] = kv.block_table(chunk.sequence, group);
    }
    batch.num_tokens += chunk.num_tokens;
  }
  return batch;
}

}  // namespace kvasir::engine
