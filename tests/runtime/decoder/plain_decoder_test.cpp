// Tiny models of every family, with windows and without, against a forward pass written plainly in
// double precision: what runs everywhere, whether or not the real models are there.
#include "tests/runtime/decoder/plain_decoder.h"

#include "runtime/kernels/dispatch.h"
#include "tests/runtime/decoder/run_sequences.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <cmath>
#include <string>

using namespace kvasir;
using namespace kvasir::runtime;
using namespace kvasir::runtime::test;

namespace {

constexpr std::uint32_t kTokens = 300;  // over the border of a range of attention

std::vector<TokenId> some_tokens(std::uint32_t vocab_size) {
  std::vector<TokenId> tokens;
  for (std::uint32_t i = 0; i < kTokens; ++i) tokens.push_back((i * i + 7 * i + 3) % vocab_size);
  return tokens;
}

/// The largest difference of any logit, relative to the largest logit.
double difference(const TestModel& model, const std::vector<std::vector<double>>& expected,
                  Isa isa) {
  const auto tokens = some_tokens(model.config.vocab_size);
  RunOptions options;
  options.isa = isa;
  options.num_blocks = 200;
  SequenceRunner runner(model, options);
  TestSequence sequence =
      make_sequence(greedy_request(tokens), runner.blocks(kTokens + 1, 3, 7), true);
  runner.run_alone(sequence, 70, 1);
  REQUIRE(sequence.logits.size() == kTokens);
  double worst = 0.0, largest = 0.0;
  for (std::size_t p = 0; p < kTokens; ++p) {
    for (std::size_t id = 0; id < expected[p].size(); ++id) {
      const double off = std::abs(static_cast<double>(sequence.logits[p][id]) - expected[p][id]);
      worst = std::isnan(off) ? 1e9 : std::max(worst, off);
      largest = std::max(largest, std::abs(expected[p][id]));
    }
  }
  return worst / largest;
}

const TinyShape kShapes[] = {
    {.family = ModelFamily::kLlama, .window_tokens = 9},
    {.family = ModelFamily::kQwen2, .num_kv_heads = 1, .head_dim = 24},
    {.family = ModelFamily::kGemma3, .num_layers = 3},
    {.family = ModelFamily::kGemma3,
     .num_kv_heads = 1,
     .head_dim = 24,
     .num_layers = 6,
     .window_tokens = 37,
     .full_layer_period = 6},
    {.family = ModelFamily::kGemma3,
     .num_heads = 3,
     .num_kv_heads = 3,
     .head_dim = 20,
     .width = 52,
     .num_layers = 3,
     .window_tokens = 260,
     .full_layer_period = 3},
};

}  // namespace

TEST_CASE("Decoder: tiny models of every family are near a plain pass in double precision",
          "[runtime]") {
  for (const TinyShape& shape : kShapes) {
    const auto model = make_tiny_model(shape, 19);
    const auto expected = plain_logits(*model, some_tokens(shape.vocab_size));
    // Each layer has four products one after another, and then there is the head; each sums at most
    // 96 terms, and each of those adds at most 2^-24 of what is summed.
    const double tolerance = (4.0 * shape.num_layers + 1.0) * 96.0 * 0x1.0p-24;
    for (const Isa isa : compiled_isas()) {
      if (!cpu_supports(isa)) continue;
      INFO(model->config.architecture << ", window " << shape.window_tokens << ", "
                                      << isa_name(isa));
      CHECK(difference(*model, expected, isa) <= tolerance);
    }
  }
}

TEST_CASE("Decoder: a window that is off by one is far from the plain pass", "[runtime]") {
  for (const TinyShape& shape : kShapes) {
    if (shape.window_tokens == 0) continue;
    const auto model = make_tiny_model(shape, 19);
    const auto expected = plain_logits(*model, some_tokens(shape.vocab_size));
    for (const int off : {-1, 1}) {
      const auto other = make_tiny_model(shape, 19);
      auto& window = other->config.layer_kinds.back().window_tokens;
      window = static_cast<std::uint32_t>(static_cast<int>(window) + off);
      INFO("window " << window);
      CHECK(difference(*other, expected, best_isa()) > 1e-3);
    }
  }
}
