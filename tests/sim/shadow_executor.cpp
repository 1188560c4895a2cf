// Every check here stands for bytes that a real executor would have read or overwritten.
#include "tests/sim/shadow_executor.h"

#include "core/check.h"
#include "scheduler/apply.h"
#include "tests/sim/toy_model.h"

#include <algorithm>

namespace kvasir::sim {
namespace {

constexpr std::uint64_t kNonsense = 0xbad;

/// What the layers of one block of a group's stripe keep of a position.
std::uint64_t stored(std::uint64_t state, std::size_t group, std::uint32_t block) {
  return state + (group * 64 + block) * 0x9e3779b97f4a7c15ULL;
}

void extend(std::vector<std::uint64_t>& prefix, std::span<const TokenId> tokens,
            std::uint64_t cache_salt) {
  if (prefix.empty()) prefix.push_back(empty_prefix(cache_salt));
  while (prefix.size() <= tokens.size()) {
    prefix.push_back(extend_prefix(prefix.back(), tokens[prefix.size() - 1]));
  }
}

}  // namespace

ShadowExecutor::ShadowExecutor(const kvcache::KvCacheManager& kv)
    : kv_(kv),
      geometry_(kv.geometry()),
      block_tokens_(kv.geometry().block_tokens),
      slots_(std::size_t{kv.num_blocks()} * block_tokens_, kNonsense) {}

StepResult ShadowExecutor::execute(const StepPlan& plan, const scheduler::SchedulerState& state) {
  StepResult result;
  copy(scheduler::block_copies(plan, kv_));
  for (const Chunk& chunk : plan.chunks) {
    const scheduler::Sequence* const sequence = state.find(chunk.sequence);
    KVASIR_CHECK(sequence != nullptr, "sequence " << value_of(chunk.sequence) << " has gone");
    const std::uint32_t end = chunk.first_position + chunk.num_tokens;
    const Prefix& prefix = prefix_of(*sequence);
    check_may_write({chunk.sequence, chunk.first_position, end});
    compute({chunk.sequence, chunk.first_position, end}, prefix);
    score(chunk, *sequence, result);
    if (chunk.first_logits_row == chunk.num_tokens) continue;
    if (end < sequence->num_tokens() || !sequence->generates()) {
      KVASIR_CHECK(sequence->request->prompt_logprobs.has_value(), "these logits are for nobody");
      continue;
    }
    SampledToken& sampled = result.sampled.emplace_back();
    sampled.sequence = chunk.sequence;
    sampled.token =
        next_token(read_last_group(chunk.sequence, end - 1), sequence->request->sampling);
  }
  return result;
}

/// The chunk's rows of prompt logprobs, read from the slots.
void ShadowExecutor::score(const Chunk& chunk, const scheduler::Sequence& sequence,
                           StepResult& result) {
  const std::uint32_t begin = chunk.first_position + chunk.first_logits_row;
  const std::uint32_t end =
      std::min(chunk.first_position + chunk.num_tokens, sequence.rows_to_score());
  if (begin >= end) return;
  PromptLogprobs& scores = result.prompts.emplace_back();
  scores.sequence = chunk.sequence;
  scores.first_token = begin + 1;
  for (std::uint32_t p = begin; p < end; ++p) {
    const std::uint64_t state = read_last_group(chunk.sequence, p);
    scores.tokens.push_back({.logprob = prompt_logprob(state, sequence.tokens[p + 1]), .rank = 1});
  }
}

void ShadowExecutor::execute_and_fail(const StepPlan& plan) {
  copy(scheduler::block_copies(plan, kv_));
  for (const Chunk& chunk : plan.chunks) {
    const Stretch stretch{chunk.sequence, chunk.first_position,
                          chunk.first_position + chunk.num_tokens};
    check_may_write(stretch);
    write(stretch, nullptr);
  }
}

bool ShadowExecutor::audit(SequenceId id, const kvcache::AuditStep& step,
                           std::span<const TokenId> tokens, std::uint64_t cache_salt) {
  Prefix prefix;
  const std::uint32_t end = step.first_position + step.num_tokens;
  extend(prefix, tokens.first(end), cache_salt);
  KVASIR_CHECK(step.num_tokens >= 1 && step.num_tokens <= block_tokens_, step.num_tokens);
  for (const kvcache::AuditStep::Pair& pair : step.pairs) {
    KVASIR_CHECK(pair.cached != pair.fresh, "a block is compared with itself");
    KVASIR_CHECK(!kv_.is_published(pair.fresh), "an audit overwrites what is published");
    KVASIR_CHECK(kv_.is_published(pair.cached), "what an audit compares is not cached");
  }
  compute({id, step.first_position, end}, prefix);
  return std::ranges::all_of(step.pairs, [&](const kvcache::AuditStep::Pair& pair) {
    for (std::uint32_t i = 0; i < step.num_tokens; ++i) {
      if (slot(pair.cached, i) != slot(pair.fresh, i)) return false;
    }
    return true;
  });
}

void ShadowExecutor::spoil(BlockId block, std::uint32_t slot_index) {
  slot(block, slot_index) ^= kNonsense;
}

void ShadowExecutor::poison_unused() {
  for (std::uint32_t i = 0; i < kv_.num_blocks(); ++i) {
    const BlockId block{i};
    if (kv_.references(block) > 0 || kv_.is_published(block)) continue;
    for (std::uint32_t s = 0; s < block_tokens_; ++s) slot(block, s) = kNonsense;
  }
}

/// The slots that are not copied are left as they were: whoever reads them finds another's value.
void ShadowExecutor::copy(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    KVASIR_CHECK(copy.num_tokens >= 1 && copy.num_tokens < block_tokens_, copy.num_tokens);
    KVASIR_CHECK(kv_.references(copy.source) >= 1, "what is copied has gone");
    KVASIR_CHECK(kv_.references(copy.destination) == 1, "a copy overwrites what others hold");
    KVASIR_CHECK(!kv_.is_published(copy.destination), "a copy overwrites what is published");
    for (std::uint32_t i = 0; i < copy.num_tokens; ++i) {
      slot(copy.destination, i) = slot(copy.source, i);
    }
  }
}

void ShadowExecutor::compute(const Stretch& stretch, const Prefix& prefix) {
  check_seen(stretch, prefix);
  write(stretch, &prefix);
}

/// That the first of the stretch's queries finds its past, and that what its windows have left is
/// given back.
void ShadowExecutor::check_seen(const Stretch& stretch, const Prefix& prefix) const {
  for (std::size_t g = 0; g < geometry_.groups.size(); ++g) {
    const std::span<const BlockId> table = kv_.block_table(stretch.id, g);
    const std::uint32_t per_stripe = geometry_.blocks_per_stripe(g);
    const std::uint32_t window = geometry_.groups[g].window_tokens;
    // What the query before saw may still be there, for those who fork its sequence.
    const std::uint32_t behind = geometry_.first_visible_stripe(g, std::max(stretch.first, 1U) - 1);
    for (std::uint32_t i = 0; i < behind * per_stripe; ++i) {
      KVASIR_CHECK(table[i] == kNoBlock,
                   "sequence " << value_of(stretch.id) << " keeps what its window has left");
    }
    const std::uint32_t first_seen =
        window == 0 || stretch.first < window ? 0 : stretch.first + 1 - window;
    for (std::uint32_t p = first_seen; p < stretch.first; ++p) {
      for (std::uint32_t i = 0; i < per_stripe; ++i) {
        const BlockId block = table[p / block_tokens_ * per_stripe + i];
        KVASIR_CHECK(block != kNoBlock && slot(block, p) == stored(prefix[p + 1], g, i),
                     "sequence " << value_of(stretch.id) << " finds another's value at " << p);
      }
    }
  }
}

/// Without a prefix: nonsense.
void ShadowExecutor::write(const Stretch& stretch, const Prefix* prefix) {
  for (std::size_t g = 0; g < geometry_.groups.size(); ++g) {
    const std::span<const BlockId> table = kv_.block_table(stretch.id, g);
    const std::uint32_t per_stripe = geometry_.blocks_per_stripe(g);
    for (std::uint32_t p = stretch.first; p < stretch.end; ++p) {
      for (std::uint32_t i = 0; i < per_stripe; ++i) {
        slot(table[p / block_tokens_ * per_stripe + i], p) =
            prefix == nullptr ? kNonsense : stored((*prefix)[p + 1], g, i);
      }
    }
  }
}

void ShadowExecutor::check_may_write(const Stretch& stretch) const {
  KVASIR_CHECK(stretch.end - stretch.first <= geometry_.largest_chunk, "too long a chunk");
  for (std::size_t g = 0; g < geometry_.groups.size(); ++g) {
    const std::span<const BlockId> table = kv_.block_table(stretch.id, g);
    const std::uint32_t per_stripe = geometry_.blocks_per_stripe(g);
    KVASIR_CHECK(table.size() == geometry_.stripes_for(stretch.end) * per_stripe,
                 table.size() << " blocks for " << stretch.end);
    for (std::size_t i = std::size_t{stretch.first / block_tokens_} * per_stripe; i < table.size();
         ++i) {
      const BlockId block = table[i];
      KVASIR_CHECK(block != kNoBlock);
      KVASIR_CHECK(kv_.references(block) == 1, "block " << value_of(block) << " is shared");
      KVASIR_CHECK(!kv_.is_published(block), "block " << value_of(block) << " is published");
    }
  }
}

/// The model's state at a position, as the last group has it.
std::uint64_t ShadowExecutor::read_last_group(SequenceId id, std::uint32_t position) const {
  const std::size_t g = geometry_.groups.size() - 1;
  const std::size_t stripe = position / block_tokens_;
  const BlockId block = kv_.block_table(id, g)[stripe * geometry_.blocks_per_stripe(g)];
  return slot(block, position) - stored(0, g, 0);
}

std::uint64_t& ShadowExecutor::slot(BlockId block, std::uint32_t position) {
  return slots_[std::size_t{value_of(block)} * block_tokens_ + position % block_tokens_];
}

std::uint64_t ShadowExecutor::slot(BlockId block, std::uint32_t position) const {
  return slots_[std::size_t{value_of(block)} * block_tokens_ + position % block_tokens_];
}

const ShadowExecutor::Prefix& ShadowExecutor::prefix_of(const scheduler::Sequence& sequence) {
  Prefix& prefix = prefixes_[sequence.id];
  extend(prefix, sequence.tokens, sequence.request->cache_salt);
  return prefix;
}

}  // namespace kvasir::sim
