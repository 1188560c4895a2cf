// Every check here stands for bytes that a real executor would have read or overwritten.
#include "tests/sim/shadow_executor.h"

#include "core/check.h"
#include "scheduler/apply.h"
#include "tests/sim/toy_model.h"

#include <algorithm>

namespace kvasir::sim {

ShadowExecutor::ShadowExecutor(const kvcache::KvCacheManager& kv)
    : kv_(kv),
      block_tokens_(kv.geometry().block_tokens),
      slots_(std::size_t{kv.num_blocks()} * block_tokens_, 0) {}

StepResult ShadowExecutor::execute(const StepPlan& plan, const scheduler::SchedulerState& state) {
  StepResult result;
  copy(scheduler::block_copies(plan, kv_));
  for (const Chunk& chunk : plan.chunks) {
    const scheduler::Sequence* const sequence = state.find(chunk.sequence);
    KVASIR_CHECK(sequence != nullptr, "sequence " << value_of(chunk.sequence) << " has gone");
    const std::span<const BlockId> table = kv_.block_table(chunk.sequence);
    const Prefix& prefix = prefix_of(*sequence);
    check_may_write(chunk, table);

    const std::uint32_t end = chunk.first_position + chunk.num_tokens;
    for (std::uint32_t p = 0; p < chunk.first_position; ++p) {
      KVASIR_CHECK(slot(table, p) == prefix[p + 1],
                   "sequence " << value_of(chunk.sequence) << " finds another's value at " << p);
    }
    for (std::uint32_t p = chunk.first_position; p < end; ++p) slot(table, p) = prefix[p + 1];
    score(chunk, *sequence, result);
    if (chunk.first_logits_row == chunk.num_tokens) continue;
    if (end < sequence->num_tokens() || !sequence->generates()) {
      KVASIR_CHECK(sequence->request->prompt_logprobs.has_value(), "these logits are for nobody");
      continue;
    }
    SampledToken& sampled = result.sampled.emplace_back();
    sampled.sequence = chunk.sequence;
    sampled.token = next_token(slot(table, end - 1), sequence->request->sampling);
  }
  return result;
}

/// The chunk's rows of prompt logprobs, read from the slots.
void ShadowExecutor::score(const Chunk& chunk, const scheduler::Sequence& sequence,
                           StepResult& result) {
  const std::span<const BlockId> table = kv_.block_table(chunk.sequence);
  const std::uint32_t begin = chunk.first_position + chunk.first_logits_row;
  const std::uint32_t end =
      std::min(chunk.first_position + chunk.num_tokens, sequence.rows_to_score());
  if (begin >= end) return;
  PromptLogprobs& scores = result.prompts.emplace_back();
  scores.sequence = chunk.sequence;
  scores.first_token = begin + 1;
  for (std::uint32_t p = begin; p < end; ++p) {
    scores.tokens.push_back(
        {.logprob = prompt_logprob(slot(table, p), sequence.tokens[p + 1]), .rank = 1});
  }
}

void ShadowExecutor::execute_and_fail(const StepPlan& plan) {
  copy(scheduler::block_copies(plan, kv_));
  for (const Chunk& chunk : plan.chunks) {
    const std::span<const BlockId> table = kv_.block_table(chunk.sequence);
    check_may_write(chunk, table);
    for (std::uint32_t i = 0; i < chunk.num_tokens; ++i)
      slot(table, chunk.first_position + i) = 0xbad;
  }
}

/// The slots that are not copied are left as they were: whoever reads them finds another's value.
void ShadowExecutor::copy(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    KVASIR_CHECK(copy.num_tokens >= 1 && copy.num_tokens < block_tokens_, copy.num_tokens);
    KVASIR_CHECK(kv_.references(copy.source) >= 1, "what is copied has gone");
    KVASIR_CHECK(kv_.references(copy.destination) == 1, "a copy overwrites what others hold");
    KVASIR_CHECK(!kv_.is_published(copy.destination), "a copy overwrites what is published");
    const auto from = slots_.begin() + std::ptrdiff_t{value_of(copy.source)} * block_tokens_;
    std::copy_n(from, copy.num_tokens,
                slots_.begin() + std::ptrdiff_t{value_of(copy.destination)} * block_tokens_);
  }
}

std::uint64_t& ShadowExecutor::slot(std::span<const BlockId> table, std::uint32_t position) {
  const std::size_t block = value_of(table[position / block_tokens_]);
  return slots_[block * block_tokens_ + position % block_tokens_];
}

const ShadowExecutor::Prefix& ShadowExecutor::prefix_of(const scheduler::Sequence& sequence) {
  Prefix& prefix = prefixes_[sequence.id];
  if (prefix.empty()) prefix.push_back(empty_prefix(sequence.request->cache_salt));
  while (prefix.size() <= sequence.tokens.size()) {
    prefix.push_back(extend_prefix(prefix.back(), sequence.tokens[prefix.size() - 1]));
  }
  return prefix;
}

void ShadowExecutor::check_may_write(const Chunk& chunk, std::span<const BlockId> table) const {
  const std::uint32_t end = chunk.first_position + chunk.num_tokens;
  KVASIR_CHECK(table.size() == kv_.geometry().blocks_for(end), table.size()
                                                                   << " blocks for " << end);
  for (std::uint32_t p = chunk.first_position; p < end; ++p) {
    const BlockId block = table[p / block_tokens_];
    KVASIR_CHECK(kv_.references(block) == 1, "block " << value_of(block) << " is shared");
    KVASIR_CHECK(!kv_.is_published(block), "block " << value_of(block) << " is published");
  }
}

}  // namespace kvasir::sim
