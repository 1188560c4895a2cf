// A batch flattened for the decoder: one entry for each token, and which tokens' last hidden states
// are wanted. Pure bookkeeping over the batch's shape; nothing is computed on floats here.
#pragma once

#include "runtime/batch.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::runtime {

struct StepToken {
  TokenId token = 0;
  std::uint32_t position = 0;
  std::uint32_t chunk = 0;
};

struct StepLayout {
  std::vector<StepToken> tokens;                  // batch order: chunk after chunk
  std::vector<std::uint32_t> chunk_first_token;   // [chunks]: index into tokens
  std::vector<std::uint32_t> chunk_first_query;   // [chunks] of zeros: every token asks
  std::vector<std::uint32_t> wanted;              // ascending indices into tokens
  std::vector<std::uint32_t> chunk_first_wanted;  // [chunks]: within the chunk, its size if none

  /// Room for any batch within the limits, so that build() allocates nothing.
  void reserve(std::uint32_t max_tokens, std::uint32_t max_chunks);
  void build(const Batch& batch, std::span<const std::uint32_t> wanted_tokens);
  [[nodiscard]] bool all_wanted() const { return wanted.size() == tokens.size(); }
};

}  // namespace kvasir::runtime
