// A batch as arrays: every token and every query is there once, and every worker's share is
// contiguous.
#include "runtime/model/step_layout.h"

#include "tests/support/catch.h"

#include <map>
#include <tuple>
#include <vector>

using namespace kvasir;
using namespace kvasir::runtime;

namespace {

struct ChunkShape {
  std::uint32_t first_position, num_tokens;
};

/// Tokens count from 0 in every sequence, so that a token is its position.
Batch make_batch(const std::vector<ChunkShape>& shapes, const std::vector<TokenId>& tokens) {
  Batch batch;
  for (const ChunkShape& shape : shapes) {
    BatchChunk chunk;
    chunk.first_position = shape.first_position;
    chunk.num_tokens = shape.num_tokens;
    chunk.tokens = tokens;
    batch.num_tokens += shape.num_tokens;
    batch.chunks.push_back(chunk);
  }
  return batch;
}

}  // namespace

TEST_CASE("StepLayout: every query meets every KV head once, in units that fit", "[runtime]") {
  std::vector<TokenId> tokens(2000);
  for (std::uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = i;
  const std::vector<ChunkShape> shapes = {{900, 1}, {0, 1}, {33, 17}, {512, 16}, {1000, 100}};
  const Batch batch = make_batch(shapes, tokens);
  for (const std::uint32_t num_workers : {1U, 2U, 3U, 64U}) {
    StepLayout layout;
    layout.build(batch, 3, num_workers);
    REQUIRE(layout.tokens.size() == batch.num_tokens);
    std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, int>
        seen;  // chunk, head, query
    for (const AttentionUnit& unit : layout.units) {
      CHECK(unit.num_queries <= kUnitQueries);
      for (std::uint32_t q = 0; q < unit.num_queries; ++q) {
        ++seen[{unit.chunk, unit.kv_head, unit.first_query + q}];
      }
    }
    CHECK(seen.size() == std::size_t{batch.num_tokens} * 3);
    for (const auto& [query, times] : seen) CHECK(times == 1);
    for (std::size_t c = 0; c < shapes.size(); ++c) {
      const StepToken& first = layout.tokens[layout.chunk_first_token[c]];
      CHECK(first.chunk == c);
      CHECK(first.position == shapes[c].first_position);
      CHECK(first.token == first.position);
    }
    REQUIRE(layout.unit_begin.size() == num_workers + 1);
    CHECK(layout.unit_begin.front() == 0);
    CHECK(layout.unit_begin.back() == layout.units.size());
    for (std::uint32_t w = 0; w < num_workers; ++w) {
      CHECK(layout.unit_begin[w] <= layout.unit_begin[w + 1]);
    }
    CHECK(layout.units.size() <= max_attention_units(batch.num_tokens, shapes.size(), 3));
  }
}

TEST_CASE("StepLayout: two workers get about the same number of positions to read", "[runtime]") {
  const std::vector<TokenId> tokens(600);
  StepLayout layout;
  layout.build(make_batch({{0, 512}}, tokens), 3, 2);
  std::uint64_t cost[2] = {0, 0};
  for (std::size_t w = 0; w < 2; ++w) {
    for (std::size_t u = layout.unit_begin[w]; u < layout.unit_begin[w + 1]; ++u) {
      cost[w] += layout.units[u].first_query + layout.units[u].num_queries;
    }
  }
  CHECK(cost[0] * 10 < cost[1] * 11);
  CHECK(cost[1] * 10 < cost[0] * 11);
}
