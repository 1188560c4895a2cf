// Choices of one prompt through the real engine and executor on a tiny model: the same tokens and
// logprobs as each alone, whatever the budget, and the prompt's keys and values held once.
#include "cli/engine_stack.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace kvasir;

namespace {

constexpr std::uint32_t kNumChoices = 8;
constexpr std::uint32_t kPromptTokens = 75;  // two blocks of 32 and eleven tokens
constexpr std::uint32_t kMaxTokens = 40;     // over two borders

/// Everything that must be equal.
struct Answer {
  std::vector<TokenId> tokens;
  std::vector<std::uint32_t> logprob_bits;
  std::vector<TokenLogprob> top;
  friend bool operator==(const Answer&, const Answer&) = default;
};

class AnswerSink final : public engine::TokenSink {
 public:
  bool on_token(engine::TokenEvent event) noexcept override {
    answer.tokens.push_back(event.token);
    answer.logprob_bits.push_back(std::bit_cast<std::uint32_t>(event.logprob));
    answer.top.insert(answer.top.end(), event.top.begin(), event.top.end());
    return true;
  }
  void on_prompt_logprobs(PromptLogprobs) noexcept override {}
  void on_finish(engine::FinishEvent event) noexcept override { finish = std::move(event); }

  Answer answer;
  std::optional<engine::FinishEvent> finish;
};

config::LoadedOptions tiny_options(const std::string& kv_type) {
  config::LoadedOptions loaded;
  config::ServeOptions& options = loaded.options;
  options.model_path = std::string(KVASIR_SOURCE_DIR) + "/tests/golden/tiny/llama-gqa.gguf";
  options.kv_budget_bytes = 4U << 20U;
  options.kv_type = kv_type;
  options.threads = 2;
  options.max_sequences = kNumChoices;
  options.max_waiting = 2 * kNumChoices;
  options.step_tokens = 24;
  return loaded;
}

config::LoadedOptions with_blocks(config::LoadedOptions loaded, std::uint64_t num_blocks) {
  const std::uint64_t block = cli::build_engine_stack(loaded)->geometry.bytes_per_block();
  loaded.options.kv_budget_bytes = num_blocks * block;
  return loaded;
}

Request choice(const cli::EngineStack& stack, std::uint32_t k) {
  Request request;
  for (std::uint32_t i = 0; i < kPromptTokens; ++i) {
    request.prompt_tokens.push_back(1 + 7 * i % (stack.info.vocab_size - 1));
  }
  request.sampling.temperature = 1.2F;
  request.sampling.seed = 99;
  request.sampling.choice_index = k;
  request.stop.max_tokens = kMaxTokens;
  request.top_logprobs = 3;
  return request;
}

/// Runs the choices together and gives their answers in order, with the most blocks ever held.
struct Outcome {
  std::vector<Answer> answers;
  std::vector<engine::SequenceUsage> usages;
  std::uint32_t peak_blocks = 0;
  std::uint64_t preemptions = 0;
};

Outcome run(cli::EngineStack& stack, const std::vector<std::uint32_t>& choices,
            std::uint64_t fork_group) {
  std::vector<std::shared_ptr<AnswerSink>> sinks;
  std::vector<engine::Submit> submissions;
  for (const std::uint32_t k : choices) {
    sinks.push_back(std::make_shared<AnswerSink>());
    submissions.push_back({stack.engine->next_sequence_id(), choice(stack, k), sinks.back()});
    submissions.back().request.fork_group = fork_group;
  }
  REQUIRE(stack.engine->submit(std::move(submissions)).has_value());
  Outcome outcome;
  while (stack.engine->step()) {
    outcome.peak_blocks = std::max(outcome.peak_blocks, stack.engine->status().live_blocks);
  }
  for (const auto& sink : sinks) {
    REQUIRE(sink->finish.has_value());
    REQUIRE(sink->finish->reason == FinishReason::kLength);
    outcome.answers.push_back(std::move(sink->answer));
    outcome.usages.push_back(sink->finish->usage);
  }
  outcome.preemptions = stack.engine->status().preemptions_total;
  CHECK(stack.engine->status().live_blocks == 0);
  return outcome;
}

std::vector<std::uint32_t> all_choices() {
  std::vector<std::uint32_t> choices;
  for (std::uint32_t k = 0; k < kNumChoices; ++k) choices.push_back(k);
  return choices;
}

/// Each choice by itself, without a prefix to find.
std::vector<Answer> alone(const config::LoadedOptions& loaded) {
  config::LoadedOptions uncached = loaded;
  uncached.options.prefix_cache = false;
  const auto stack = cli::build_engine_stack(uncached);
  std::vector<Answer> answers;
  for (const std::uint32_t k : all_choices()) answers.push_back(run(*stack, {k}, 0).answers[0]);
  return answers;
}

}  // namespace

TEST_CASE("Forks: choices together are what each is alone, at every KV type and budget", "[cli]") {
  const std::string kv_type = GENERATE("f32", "f16", "bf16");
  const config::LoadedOptions loaded = tiny_options(kv_type);
  const std::vector<Answer> expected = alone(loaded);
  for (std::uint32_t k = 1; k < kNumChoices; ++k) CHECK(expected[k].tokens != expected[0].tokens);

  for (const bool prefix_cache : {true, false}) {
    for (const std::uint32_t num_blocks : {64U, 12U, 4U}) {
      for (const std::uint32_t max_sequences : {kNumChoices, 3U}) {
        CAPTURE(kv_type, prefix_cache, num_blocks, max_sequences);
        config::LoadedOptions other = with_blocks(loaded, num_blocks);
        other.options.prefix_cache = prefix_cache;
        other.options.max_sequences = max_sequences;
        const auto stack = cli::build_engine_stack(other);
        const Outcome together = run(*stack, all_choices(), 1);
        CHECK(together.answers == expected);
        CHECK((together.preemptions > 0) == (num_blocks < 2 + 2 * max_sequences));
      }
    }
  }
}

TEST_CASE("Forks: a prompt's blocks are held once, and its tokens computed once", "[cli]") {
  config::LoadedOptions loaded = with_blocks(tiny_options("f16"), 64);
  loaded.options.prefix_cache = GENERATE(true, false);
  const auto stack = cli::build_engine_stack(loaded);
  const Outcome together = run(*stack, all_choices(), 1);
  // 114 tokens in the end: two blocks that all hold, and two of each choice's own.
  CHECK(together.peak_blocks == 2 + 2 * kNumChoices);
  CHECK(together.usages[0].cached_tokens == 0);
  CHECK(together.usages[0].computed_tokens == kPromptTokens + kMaxTokens - 1);
  for (std::uint32_t k = 1; k < kNumChoices; ++k) {
    CHECK(together.usages[k].cached_tokens == kPromptTokens - 1);
    CHECK(together.usages[k].computed_tokens == kMaxTokens);
  }
}
