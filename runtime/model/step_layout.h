// A batch flattened for the decoder: one entry for each token, and the units of attention work with
// the worker that does each. Pure arithmetic over the batch's shape; nothing is computed on floats
// here.
#pragma once

#include "runtime/batch.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvasir::runtime {

struct StepToken {
  TokenId token = 0;
  std::uint32_t position = 0;
  std::uint32_t chunk = 0;
};

/// Consecutive queries of one chunk against one KV head.
struct AttentionUnit {
  std::uint32_t chunk = 0;
  std::uint32_t kv_head = 0;
  std::uint32_t first_query = 0;  // index within the chunk
  std::uint32_t num_queries = 0;
};

/// Queries of one unit at most: a K tile that was read serves them all, and a prefill chunk still
/// splits over workers.
inline constexpr std::uint32_t kUnitQueries = 16;

struct StepLayout {
  std::vector<StepToken> tokens;                 // batch order: chunk after chunk
  std::vector<std::uint32_t> chunk_first_token;  // [chunks]: index into tokens
  std::vector<AttentionUnit> units;
  std::vector<std::size_t> unit_begin;  // [workers + 1]: worker w does units [w], [w + 1)

  /// Room for any batch within the limits, so that build() allocates nothing.
  void reserve(std::uint32_t max_tokens, std::uint32_t max_chunks, std::uint32_t num_kv_heads,
               std::uint32_t num_workers);
  void build(const Batch& batch, std::uint32_t num_kv_heads, std::uint32_t num_workers);
};

/// Units of a step at most: every chunk may leave one unit that is not full.
[[nodiscard]] constexpr std::size_t max_attention_units(std::size_t max_tokens,
                                                        std::size_t max_chunks,
                                                        std::size_t num_kv_heads) {
  return (max_tokens / kUnitQueries + max_chunks) * num_kv_heads;
}

}  // namespace kvasir::runtime
