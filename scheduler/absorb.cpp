// Commit first, then append: a sampled token is known, but in the cache only when a later chunk has
// computed it.
#include "scheduler/absorb.h"

#include "core/check.h"
#include "kvcache/kv_plan.h"

#include <algorithm>
#include <utility>

namespace kvasir::scheduler {
namespace {

void commit(const Chunk& chunk, Sequence& sequence, Totals& totals, kvcache::KvCacheManager& kv) {
  KVASIR_CHECK(chunk.first_position == sequence.num_computed_tokens,
               chunk.first_position << " is not " << sequence.num_computed_tokens);
  const std::uint32_t end = chunk.first_position + chunk.num_tokens;
  const std::uint32_t recomputed =
      std::min(end, std::max(sequence.furthest_computed, chunk.first_position)) -
      chunk.first_position;
  sequence.computed_tokens += chunk.num_tokens;
  sequence.recomputed_tokens += recomputed;
  sequence.attention_scores +=
      kvcache::attention_scores(kv.geometry(), chunk.first_position, chunk.num_tokens);
  totals.computed_tokens += chunk.num_tokens;
  totals.recomputed_tokens += recomputed;
  sequence.num_computed_tokens = end;
  sequence.furthest_computed = std::max(sequence.furthest_computed, end);
  kv.commit(sequence.id, sequence.hashed_tokens(), end);
}

void append(TokenId token, Sequence& sequence, Totals& totals, TimePoint now) {
  if (!sequence.first_token_at) sequence.first_token_at = now;
  sequence.tokens.push_back(token);
  sequence.hashes.extend(sequence.tokens);
  ++totals.generation_tokens;
}

Finish take(SchedulerState& state, kvcache::KvCacheManager& kv, SequenceId id,
            FinishReason reason) {
  std::optional<Sequence> ended = remove(state, kv, id);
  KVASIR_CHECK(ended.has_value(), "sequence " << value_of(id) << " is unknown");
  return {.sequence = std::move(*ended), .reason = reason, .stop_token = {}, .error = {}};
}

/// Ends the sequence if its last token says so.
void finish_if_done(const Sequence& sequence, SchedulerState& state, kvcache::KvCacheManager& kv,
                    std::vector<Finish>& finishes) {
  const TokenId last = sequence.tokens.back();
  if (std::ranges::binary_search(sequence.request->stop.stop_token_ids, last)) {
    finishes.push_back(take(state, kv, sequence.id, FinishReason::kStop));
    finishes.back().stop_token = last;
  } else if (sequence.num_tokens() >= sequence.max_total_tokens) {
    finishes.push_back(take(state, kv, sequence.id, FinishReason::kLength));
  }
}

/// Whose fault it is that no token is allowed: a request that bans nothing has met a model that
/// gives no numbers.
Error no_token_error(const Sequence& sequence) {
  const StopRules& stop = sequence.request->stop;
  if (sequence.num_generated() < stop.min_tokens && !stop.stop_token_ids.empty()) {
    return {ErrorCode::kInvalidValue,
            "min_tokens bans the stop tokens, and no other token is left to sample", "min_tokens"};
  }
  return {ErrorCode::kInternal, "the model gives no token a probability", ""};
}

void finish_without_token(const Sequence& sequence, SchedulerState& state,
                          kvcache::KvCacheManager& kv, std::vector<Finish>& finishes) {
  Error error = no_token_error(sequence);
  finishes.push_back(take(state, kv, sequence.id, FinishReason::kError));
  finishes.back().error = std::move(error);
}

/// The chunk's rows of prompt logprobs, where it has any, leave for the sink.
void absorb_scores(const Chunk& chunk, Sequence& sequence, PromptLogprobs& scores) {
  KVASIR_CHECK(scores.sequence == chunk.sequence, "prompt logprobs are not in chunk order");
  const std::uint32_t end =
      std::min(chunk.first_position + chunk.num_tokens, sequence.rows_to_score());
  KVASIR_CHECK(
      scores.first_token == sequence.num_scored_rows + 1,
      "scores of token " << scores.first_token << " after " << sequence.num_scored_rows << " rows");
  KVASIR_CHECK(scores.tokens.size() == end - sequence.num_scored_rows,
               scores.tokens.size() << " scores up to row " << end);
  KVASIR_CHECK(scores.top.size() == scores.tokens.size() * scores.num_top);
  sequence.num_scored_rows = end;
}

}  // namespace

StepEvents absorb(const StepPlan& plan, StepResult result, SchedulerState& state,
                  kvcache::KvCacheManager& kv, TimePoint now) {
  StepEvents events;
  std::size_t next = 0;
  std::size_t next_prompt = 0;
  for (const Chunk& chunk : plan.chunks) {
    Sequence& sequence = running_sequence(state, chunk.sequence);
    commit(chunk, sequence, state.totals, kv);
    const std::uint32_t end = chunk.first_position + chunk.num_tokens;
    if (sequence.has_rows_to_score() && end > sequence.num_scored_rows) {
      KVASIR_CHECK(next_prompt < result.prompts.size(), "the result has too few prompt logprobs");
      absorb_scores(chunk, sequence, result.prompts[next_prompt++]);
    }
    if (end < sequence.num_tokens()) continue;
    if (!sequence.generates()) {
      events.finishes.push_back(take(state, kv, chunk.sequence, FinishReason::kLength));
      continue;
    }

    KVASIR_CHECK(next < result.sampled.size(), "the result has too few tokens");
    SampledToken& sampled = result.sampled[next++];
    KVASIR_CHECK(sampled.sequence == chunk.sequence, "the result is not in chunk order");
    if (sampled.all_banned) {
      finish_without_token(sequence, state, kv, events.finishes);
      continue;
    }
    append(sampled.token, sequence, state.totals, now);
    events.tokens.push_back(std::move(sampled));
    finish_if_done(sequence, state, kv, events.finishes);
  }
  KVASIR_CHECK(next == result.sampled.size(), "the result has too many tokens");
  KVASIR_CHECK(next_prompt == result.prompts.size(), "the result has too many prompt logprobs");
  events.prompts = std::move(result.prompts);
  return events;
}

std::vector<Finish> fail_step(const StepPlan& plan, const Error& error, SchedulerState& state,
                              kvcache::KvCacheManager& kv) {
  std::vector<Finish> finishes;
  for (const Chunk& chunk : plan.chunks) {
    finishes.push_back(take(state, kv, chunk.sequence, FinishReason::kError));
    finishes.back().error = error;
  }
  return finishes;
}

}  // namespace kvasir::scheduler
