#include "runtime/model/step_layout.h"

#include <algorithm>

namespace kvasir::runtime {
namespace {

/// Positions that a unit reads, which is what its time is proportional to.
std::uint64_t unit_cost(const Batch& batch, const AttentionUnit& unit) {
  const std::uint64_t end_position =
      std::uint64_t{batch.chunks[unit.chunk].first_position} + unit.first_query + unit.num_queries;
  return end_position * unit.num_queries;
}

/// Contiguous shares of about equal cost: a unit goes to the worker in whose share its middle
/// falls.
void assign_units(const Batch& batch, std::uint32_t num_workers, StepLayout& layout) {
  std::uint64_t total = 0;
  for (const AttentionUnit& unit : layout.units) total += unit_cost(batch, unit);
  layout.unit_begin.assign(num_workers + 1, layout.units.size());
  std::uint64_t before = 0;
  std::uint32_t next_worker = 0;
  for (std::size_t i = 0; i < layout.units.size(); ++i) {
    const std::uint64_t cost = unit_cost(batch, layout.units[i]);
    const std::uint64_t worker = (2 * before + cost) * num_workers / (2 * total);
    while (next_worker <= worker) layout.unit_begin[next_worker++] = i;
    before += cost;
  }
}

}  // namespace

void StepLayout::reserve(std::uint32_t max_tokens, std::uint32_t max_chunks,
                         std::uint32_t num_kv_heads, std::uint32_t num_workers) {
  tokens.reserve(max_tokens);
  chunk_first_token.reserve(max_chunks);
  units.reserve(max_attention_units(max_tokens, max_chunks, num_kv_heads));
  unit_begin.reserve(num_workers + 1);
}

void StepLayout::build(const Batch& batch, std::uint32_t num_kv_heads, std::uint32_t num_workers) {
  tokens.clear();
  chunk_first_token.clear();
  units.clear();
  for (std::uint32_t c = 0; c < batch.chunks.size(); ++c) {
    const BatchChunk& chunk = batch.chunks[c];
    chunk_first_token.push_back(static_cast<std::uint32_t>(tokens.size()));
    for (std::uint32_t i = 0; i < chunk.num_tokens; ++i) {
      const std::uint32_t position = chunk.first_position + i;
      tokens.push_back({chunk.tokens[position], position, c});
    }
    for (std::uint32_t head = 0; head < num_kv_heads; ++head) {
      for (std::uint32_t first = 0; first < chunk.num_tokens; first += kUnitQueries) {
        units.push_back({c, head, first, std::min(kUnitQueries, chunk.num_tokens - first)});
      }
    }
  }
  assign_units(batch, num_workers, *this);
}

}  // namespace kvasir::runtime
