// Logprobs of a prompt's tokens: each row says what sampling there would say, to the last bit,
// however the prompt was cut, with whatever beside it, and however few rows of logits there is room
// for; and SmolLM2's are the reference's.
#include "runtime/kernels/dispatch.h"
#include "tests/runtime/decoder/run_sequences.h"
#include "tests/runtime/decoder/test_models.h"
#include "tests/support/catch.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

using namespace kvasir;
using namespace kvasir::runtime;
using namespace kvasir::runtime::test;

namespace {

constexpr std::uint32_t kPromptTokens = 43;

std::vector<TokenId> prompt_of(std::uint32_t vocab_size, std::uint32_t seed = 3) {
  std::vector<TokenId> prompt;
  for (std::uint32_t i = 0; i < kPromptTokens; ++i) {
    seed = seed * 1664525U + 1013904223U;
    prompt.push_back((seed >> 8U) % vocab_size);
  }
  return prompt;
}

Request scoring_request(std::vector<TokenId> prompt, std::uint32_t top) {
  Request request = greedy_request(std::move(prompt));
  request.prompt_logprobs = top;
  return request;
}

/// All chunks' scores as one list; checks that they are the prompt's tokens in order, each once.
PromptLogprobs joined(const TestSequence& sequence) {
  PromptLogprobs all;
  for (const PromptLogprobs& part : sequence.scores) {
    REQUIRE(part.first_token == all.tokens.size() + 1);
    REQUIRE(part.top.size() == part.tokens.size() * part.num_top);
    all.num_top = part.num_top;
    all.tokens.insert(all.tokens.end(), part.tokens.begin(), part.tokens.end());
    all.top.insert(all.top.end(), part.top.begin(), part.top.end());
  }
  REQUIRE(all.tokens.size() + 1 == sequence.request.prompt_tokens.size());
  return all;
}

struct Circumstances {
  std::uint32_t chunk_tokens = 512;
  std::uint32_t num_threads = 1;
  std::uint32_t logits_rows = 8;  // that there is room for
  bool has_mate = false;          // with prompt logprobs of its own
};

TestSequence run(const TestModel& model, Isa isa, const Request& request,
                 const Circumstances& around) {
  RunOptions options;
  options.isa = isa;
  options.num_threads = around.num_threads;
  options.max_sequences = around.logits_rows;
  SequenceRunner runner(model, options);
  TestSequence target = make_sequence(request, runner.blocks(kPromptTokens + 2, 5, 3), false);
  TestSequence mate = make_sequence(scoring_request(prompt_of(model.config.vocab_size, 77), 2),
                                    runner.blocks(kPromptTokens + 60, 1, 3), false);
  while (target.sampled.size() < 2) {
    std::vector<ChunkOrder> orders;
    if (around.has_mate) orders.push_back({&mate, 7});
    orders.push_back({&target, around.chunk_tokens});
    runner.step(orders);
  }
  return target;
}

/// What sampling says of the token after `tokens`: all of the vocabulary.
SampledToken sample_after(SequenceRunner& runner, std::vector<TokenId> tokens,
                          std::uint32_t vocab_size) {
  Request request = greedy_request(std::move(tokens));
  request.top_logprobs = vocab_size;
  TestSequence sequence = make_sequence(request, runner.blocks(kPromptTokens + 1, 0), false);
  runner.run_alone(sequence, 512, 1);
  return sequence.sampled.front();
}

}  // namespace

TEST_CASE("Prompt logprobs: each row says what sampling there would say", "[runtime]") {
  const auto model = make_tiny_model({}, 4);
  const std::uint32_t vocab_size = model->config.vocab_size;
  const std::vector<TokenId> prompt = prompt_of(vocab_size);
  const Isa isa = best_isa();
  const TestSequence scored = run(*model, isa, scoring_request(prompt, vocab_size), {});
  const PromptLogprobs all = joined(scored);
  REQUIRE(all.num_top == vocab_size);
  RunOptions options;
  options.isa = isa;
  SequenceRunner runner(*model, options);
  for (std::uint32_t row = 0; row + 1 < kPromptTokens; ++row) {
    const SampledToken sampled =
        sample_after(runner, {prompt.begin(), prompt.begin() + row + 1}, vocab_size);
    const auto top = std::span(all.top).subspan(std::size_t{row} * vocab_size, vocab_size);
    INFO("row " << row);
    CHECK(std::ranges::equal(top, sampled.top));
    CHECK(top.front().logprob == sampled.logprob);
    const PromptToken& token = all.tokens[row];
    REQUIRE(token.rank >= 1);
    CHECK(sampled.top[token.rank - 1].token == prompt[row + 1]);
    CHECK(sampled.top[token.rank - 1].logprob == token.logprob);
  }
}

TEST_CASE("Prompt logprobs: the same bits however the prompt is cut and whatever runs beside it",
          "[runtime]") {
  const auto floats = make_tiny_model({}, 4);
  const auto int8 = make_tiny_int8_model({.width = 64, .ffn_width = 96}, 4);
  for (const TestModel* model : {floats.get(), int8.get()}) {
    for (const Isa isa : compiled_isas()) {
      if (!cpu_supports(isa)) continue;
      const Request request = scoring_request(prompt_of(model->config.vocab_size), 3);
      const TestSequence expected = run(*model, isa, request, {});
      const PromptLogprobs scores = joined(expected);
      Circumstances around;
      for (const std::uint32_t chunk : {1U, 2U, 3U, 5U, 16U, 17U, 42U, 43U, 512U}) {
        around = {.chunk_tokens = chunk,
                  .num_threads = 1 + chunk % 3,
                  .logits_rows = chunk % 2 == 0 ? 2U : 7U,
                  .has_mate = chunk % 5 != 0};
        INFO(isa_name(isa) << ", chunks of " << chunk << (around.has_mate ? ", with a mate" : ""));
        const TestSequence actual = run(*model, isa, request, around);
        CHECK(joined(actual) == scores);
        CHECK(actual.sampled == expected.sampled);
      }
    }
  }
}

TEST_CASE("Prompt logprobs: asking for them changes no token, and for fewer no number",
          "[runtime]") {
  const auto model = make_tiny_model({}, 4);
  const std::vector<TokenId> prompt = prompt_of(model->config.vocab_size);
  const TestSequence with = run(*model, best_isa(), scoring_request(prompt, 5), {});
  const TestSequence without = run(*model, best_isa(), greedy_request(prompt), {});
  CHECK(with.sampled == without.sampled);
  CHECK(without.scores.empty());
  const PromptLogprobs five = joined(with);
  for (const std::uint32_t top : {0U, 1U}) {
    const PromptLogprobs fewer = joined(run(*model, best_isa(), scoring_request(prompt, top), {}));
    CHECK(fewer.tokens == five.tokens);
    CHECK(fewer.num_top == top);
    for (std::size_t i = 0; i < fewer.top.size(); ++i) CHECK(fewer.top[i] == five.top[i * 5]);
  }
}

TEST_CASE("Prompt logprobs: SmolLM2 with an f32 cache gives the reference's",
          "[runtime][smollm2][golden]") {
  constexpr double kTolerance = 2e-3;  // tests/golden/logits/README.md
  RunOptions options;
  options.isa = best_isa();
  options.num_threads = 2;
  options.block_tokens = 32;
  options.num_blocks = 40;
  SequenceRunner runner(smollm2(), options);
  std::ifstream file(golden_path("smollm2-logits.jsonl"));
  REQUIRE(file);
  double worst = 0.0;
  std::size_t num_compared = 0;
  std::size_t num_first = 0;
  for (std::string line; std::getline(file, line);) {
    const auto row = nlohmann::json::parse(line);
    const auto prompt = row["ids"].get<std::vector<TokenId>>();
    const auto continuation = row["greedy"]["ids"].get<std::vector<TokenId>>();
    if (prompt.size() > 700) continue;  // rows of logits cost as much as all layers
    // The recorded continuation becomes a part of the prompt.
    std::vector<TokenId> tokens = prompt;
    tokens.insert(tokens.end(), continuation.begin(), continuation.end());
    const auto count = static_cast<std::uint32_t>(tokens.size());
    TestSequence sequence =
        make_sequence(scoring_request(std::move(tokens), 20), runner.blocks(count + 1, 0), false);
    runner.run_alone(sequence, 512, 1);
    const PromptLogprobs all = joined(sequence);
    INFO(row["name"].get<std::string>());
    for (const auto& position : row["positions"]) {
      const auto at = position["pos"].get<std::size_t>();
      for (std::size_t i = 0; i < 20; ++i) {
        const double expected = position["top"][i][1].get<double>();
        worst = std::max(worst, std::abs(all.top[at * 20 + i].logprob - expected));
        ++num_compared;
      }
    }
    for (std::size_t step = 0; step < continuation.size(); ++step) {
      const PromptToken& token = all.tokens[prompt.size() - 1 + step];
      const double expected = row["greedy"]["logprob"][step].get<double>();
      worst = std::max(worst, std::abs(token.logprob - expected));
      ++num_compared;
      if (row["greedy"]["margin"][step].get<double>() < kTolerance) continue;
      CHECK(token.rank == 1);
      ++num_first;
    }
  }
  INFO(num_compared << " compared, worst " << worst);
  CHECK(worst <= kTolerance);
  CHECK(num_compared > 1500);
  CHECK(num_first > 400);
}
