// Counts of the work that a KV cache saves: token passes and attention scores, with and without
// one, in closed form. Pure arithmetic over token counts and windows; the calculator, the receipts
// and the planner's costs use these and count nothing of their own.
#pragma once

#include "kvcache/kv_geometry.h"

#include <cstdint>

namespace kvasir::kvcache {

/// No count of tokens here may pass this: past it the cubes below would leave 128 bits.
inline constexpr std::uint64_t kMaxCountedTokens = std::uint64_t{1} << 40U;

/// Attention scores of one layer and head: one for each pair of a query and a key that it sees, the
/// sum of min(q + 1, W) over the queries q of [first_position, first_position + num_tokens).
/// `window_tokens` 0: no window, the sum of q + 1. No tokens: 0.
/// Requires: first_position + num_tokens <= kMaxCountedTokens.
/// Errors:   none; a sum past 2^64 - 1 is given as 2^64 - 1 (without a window first at 6.07e9
///           tokens).
[[nodiscard]] std::uint64_t attention_scores(std::uint32_t window_tokens,
                                             std::uint64_t first_position,
                                             std::uint64_t num_tokens);

/// The same for one head of every layer, summed over the layers; saturates likewise.
[[nodiscard]] std::uint64_t attention_scores(const KvGeometry& geometry,
                                             std::uint64_t first_position,
                                             std::uint64_t num_tokens);

/// Tokens that go through the model to generate `new_tokens` after a prompt, where keys and values
/// are kept: each once but the last, which is only given out: p + n - 1. Nothing to generate (n =
/// 0) counts as n = 1: the prompt is read once and nothing is sampled. All functions below keep to
/// that. Requires: prompt_tokens + new_tokens <= kMaxCountedTokens.
[[nodiscard]] std::uint64_t token_passes_with_cache(std::uint64_t prompt_tokens,
                                                    std::uint64_t new_tokens);

/// The same where nothing is kept and each new token begins with the whole text so far:
/// p + (p + 1) + ... + (p + n - 1); saturates at 2^64 - 1.
[[nodiscard]] std::uint64_t token_passes_without_cache(std::uint64_t prompt_tokens,
                                                       std::uint64_t new_tokens);

/// Attention scores of one layer and head with a cache: those of p + n - 1 tokens, each once.
[[nodiscard]] std::uint64_t attention_scores_with_cache(std::uint32_t window_tokens,
                                                        std::uint64_t prompt_tokens,
                                                        std::uint64_t new_tokens);

/// The same without a cache: those of t tokens from nothing, for each t of p .. p + n - 1. Without
/// a window that grows with the cube: exact to 4.8 million tokens, past 2^64 - 1 given as that.
[[nodiscard]] std::uint64_t attention_scores_without_cache(std::uint32_t window_tokens,
                                                           std::uint64_t prompt_tokens,
                                                           std::uint64_t new_tokens);

/// One head of every layer, summed over the layers, without a cache: what a receipt compares with.
[[nodiscard]] std::uint64_t attention_scores_without_cache(const KvGeometry& geometry,
                                                           std::uint64_t prompt_tokens,
                                                           std::uint64_t new_tokens);

}  // namespace kvasir::kvcache
