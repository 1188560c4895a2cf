#include "runtime/model/step_layout.h"

#include "core/check.h"

namespace kvasir::runtime {

void StepLayout::reserve(std::uint32_t max_tokens, std::uint32_t max_chunks) {
  tokens.reserve(max_tokens);
  wanted.reserve(max_tokens);
  chunk_first_token.reserve(max_chunks);
  chunk_first_query.reserve(max_chunks);
  chunk_first_wanted.reserve(max_chunks);
}

void StepLayout::build(const Batch& batch, std::span<const std::uint32_t> wanted_tokens) {
  tokens.clear();
  chunk_first_token.clear();
  chunk_first_wanted.clear();
  for (std::uint32_t c = 0; c < batch.chunks.size(); ++c) {
    const BatchChunk& chunk = batch.chunks[c];
    chunk_first_token.push_back(static_cast<std::uint32_t>(tokens.size()));
    chunk_first_wanted.push_back(chunk.num_tokens);
    for (std::uint32_t i = 0; i < chunk.num_tokens; ++i) {
      const std::uint32_t position = chunk.first_position + i;
      tokens.push_back({chunk.tokens[position], position, c});
    }
  }
  chunk_first_query.assign(batch.chunks.size(), 0);
  wanted.assign(wanted_tokens.begin(), wanted_tokens.end());
  // From the last to the first, so that a chunk keeps its lowest.
  for (auto index = wanted.rbegin(); index != wanted.rend(); ++index) {
    KVASIR_CHECK(*index < tokens.size());
    KVASIR_CHECK(index == wanted.rbegin() || *index < *(index - 1));
    const std::uint32_t c = tokens[*index].chunk;
    chunk_first_wanted[c] = *index - chunk_first_token[c];
  }
}

}  // namespace kvasir::runtime
