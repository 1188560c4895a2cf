// A batch as arrays: every token is there once with its position, and the wanted ones are known for
// each chunk.
#include "runtime/model/step_layout.h"

#include "tests/support/catch.h"

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

std::vector<TokenId> counting_tokens(std::uint32_t count) {
  std::vector<TokenId> tokens(count);
  for (std::uint32_t i = 0; i < count; ++i) tokens[i] = i;
  return tokens;
}

}  // namespace

TEST_CASE("StepLayout: tokens lie chunk after chunk with their positions", "[runtime]") {
  const std::vector<TokenId> tokens = counting_tokens(2000);
  const std::vector<ChunkShape> shapes = {{900, 1}, {0, 1}, {33, 17}, {512, 16}, {1000, 100}};
  const Batch batch = make_batch(shapes, tokens);
  StepLayout layout;
  layout.build(batch, {});
  REQUIRE(layout.tokens.size() == batch.num_tokens);
  for (std::size_t c = 0; c < shapes.size(); ++c) {
    for (std::uint32_t i = 0; i < shapes[c].num_tokens; ++i) {
      const StepToken& token = layout.tokens[layout.chunk_first_token[c] + i];
      CHECK(token.chunk == c);
      CHECK(token.position == shapes[c].first_position + i);
      CHECK(token.token == token.position);
    }
    CHECK(layout.chunk_first_wanted[c] == shapes[c].num_tokens);
  }
  CHECK(layout.wanted.empty());
  CHECK_FALSE(layout.all_wanted());
}

TEST_CASE("StepLayout: a chunk knows the first of its tokens that is wanted", "[runtime]") {
  const std::vector<TokenId> tokens = counting_tokens(100);
  const Batch batch = make_batch({{0, 4}, {10, 3}, {20, 1}, {30, 2}}, tokens);
  StepLayout layout;
  const std::vector<std::uint32_t> wanted = {3, 4, 6, 7};
  layout.build(batch, wanted);
  CHECK(layout.wanted == wanted);
  CHECK(layout.chunk_first_wanted == std::vector<std::uint32_t>{3, 0, 0, 2});
  CHECK_FALSE(layout.all_wanted());
  layout.build(batch, std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(layout.chunk_first_wanted == std::vector<std::uint32_t>{0, 0, 0, 0});
  CHECK(layout.all_wanted());
}
