// One stream of tokens and what the scheduler knows about it. Its blocks are the KV manager's, its
// sink the engine's.
#pragma once

#include "core/clock.h"
#include "core/ids.h"
#include "core/request.h"
#include "kvcache/block_hash.h"
#include "kvcache/kv_cache_manager.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace kvasir::scheduler {

struct Sequence {
  SequenceId id{};
  std::shared_ptr<const Request> request;  // never null
  std::vector<TokenId> tokens;             // prompt, then generated
  kvcache::HashChain hashes;               // of the full blocks of `tokens`
  std::uint32_t num_prompt_tokens = 0;
  std::uint32_t num_computed_tokens = 0;  // in the KV cache; 0 while waiting
  std::uint32_t num_scored_rows = 0;      // of the prompt, whose logprobs were delivered; kept
                                          // through preemption, so that none is delivered twice
  std::uint32_t max_total_tokens = 0;     // prompt + max_tokens, cut to the context

  std::int32_t priority = 0;          // of the request: lower is served first
  std::optional<TimePoint> deadline;  // of the request
  std::uint64_t fork_group = 0;       // of the request: equal ones have equal prompts; 0 is alone
  std::uint64_t arrival_order = 0;    // rises with every submission; kept through preemption
  std::uint64_t waited_steps = 0;     // steps spent waiting, all told; what ages it
  std::uint64_t last_turn =
      0;  // its place in the order in which steps served sequences; 0 is never
  std::uint32_t preemptions = 0;
  bool immune = false;  // its worst case is reserved, and it is never preempted

  // for usage
  std::uint32_t cached_tokens = 0;  // of the prompt, at the first admission; shared ones included
  std::uint32_t furthest_computed =
      0;  // the most tokens it ever had in the cache: below it is recomputation
  std::uint64_t computed_tokens = 0;  // token passes, recomputation included
  std::uint64_t recomputed_tokens = 0;
  kvcache::KvReceipt kv;               // of the times that it ran and is through with
  std::uint64_t attention_scores = 0;  // of its computed tokens: one head, summed over the layers
  TimePoint arrived_at{};
  std::optional<TimePoint> first_admitted_at;
  std::optional<TimePoint> first_token_at;

  [[nodiscard]] std::uint32_t num_tokens() const {
    return static_cast<std::uint32_t>(tokens.size());
  }
  [[nodiscard]] std::uint32_t num_generated() const { return num_tokens() - num_prompt_tokens; }
  [[nodiscard]] std::uint32_t remaining_tokens() const {
    return num_tokens() - num_computed_tokens;
  }
  /// One token away from the next: a step of it is a decode.
  [[nodiscard]] bool is_decode() const { return remaining_tokens() == 1; }
  /// False for one whose prompt alone is computed.
  [[nodiscard]] bool generates() const { return request->stop.max_tokens > 0; }
  /// Rows of the prompt to score in all: that of its last token predicts a generated one.
  [[nodiscard]] std::uint32_t rows_to_score() const {
    return request->prompt_logprobs ? num_prompt_tokens - 1 : 0;
  }
  /// While there are, the cache is of no use to it: cached positions have no logits.
  [[nodiscard]] bool has_rows_to_score() const { return num_scored_rows < rows_to_score(); }
  /// The most tokens it can ever have in the cache: the last generated token is never computed.
  [[nodiscard]] std::uint32_t worst_case_tokens() const {
    return generates() ? max_total_tokens - 1 : num_prompt_tokens;
  }
  /// Whether the context has room for its prompt, and for a token to generate where one is wanted.
  [[nodiscard]] bool fits_context() const {
    return max_total_tokens >= num_prompt_tokens + (generates() ? 1U : 0U);
  }
  [[nodiscard]] kvcache::HashedTokens hashed_tokens() const { return {tokens, hashes}; }
};

/// The numbers that a finished sequence reports; the fields of engine::SequenceUsage.
struct Usage {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  std::uint32_t cached_tokens = 0;
  std::uint64_t computed_tokens = 0;
  std::uint64_t recomputed_tokens = 0;
  std::uint32_t preemptions = 0;
  kvcache::KvReceipt kv;               // over all the times that it ran; in blocks
  std::uint64_t attention_scores = 0;  // computed, for one head, summed over the layers
  Duration queue_time{};  // submit to first admission, or to `now` for one that was never admitted
  Duration prefill_time{};  // first admission to first token
  Duration decode_time{};   // first token to `now`
};
[[nodiscard]] Usage usage_of(const Sequence& sequence, TimePoint now);

}  // namespace kvasir::scheduler
