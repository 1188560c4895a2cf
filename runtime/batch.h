// One step as the executor takes it: each chunk with its tokens and its block table. The engine
// builds it from the plan, the scheduler's tokens and the KV manager's tables; spans stay valid for
// the length of execute().
#pragma once

#include "core/ids.h"
#include "core/request.h"
#include "core/step_plan.h"
#include "kvcache/kv_geometry.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::runtime {

struct BatchChunk {
  SequenceId sequence{};
  std::uint32_t first_position = 0;
  std::uint32_t num_tokens = 0;
  std::uint32_t first_logits_row =
      0;  // == num_tokens when no logits are wanted; see core/step_plan.h
  std::span<const TokenId>
      tokens;  // all known tokens of the sequence, prompt first: positions 0..size-1
  std::uint32_t num_prompt_tokens = 0;  // tokens[num_prompt_tokens..] were generated
  /// Of each layer group: entry stripe * blocks_per_stripe + i (kv_geometry.h), for the stripes of
  /// first_position + num_tokens tokens. Those behind the group's window are never read.
  std::array<std::span<const BlockId>, kvcache::kMaxLayerGroups> block_tables;
  const Request* request =
      nullptr;  // sampling, stop rules (for min_tokens) and logprobs; never null

  /// Whether the last row is sampled: it is that of the last known token, and the request
  /// generates.
  [[nodiscard]] bool samples() const {
    return first_logits_row < num_tokens && first_position + num_tokens == tokens.size() &&
           request->stop.max_tokens > 0;
  }
  /// Rows [first_logits_row, here) give logprobs of the prompt's tokens, each of the next one.
  [[nodiscard]] std::uint32_t end_of_scored_rows() const {
    if (!request->prompt_logprobs || num_prompt_tokens <= first_position + 1) return 0;
    return std::min(num_tokens, num_prompt_tokens - 1 - first_position);
  }
};

struct Batch {
  std::vector<BlockCopy> copies;  // done before any chunk is computed
  std::vector<BatchChunk> chunks;
  std::uint32_t num_tokens = 0;  // sum over chunks
};

}  // namespace kvasir::runtime
