// The queue between the engine thread and a door: bounded, woken once a poll, and silent after its
// end.
#include "server/running_generation.h"

#include "tests/server/tiny_model.h"
#include "tests/support/catch.h"

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;

namespace {

struct Harness {
  explicit Harness(std::uint32_t num_choices = 1, std::vector<std::string> stop = {},
                   bool keeps_answer = false, PromptRules prompt_rules = {}) {
    std::vector<RunningGeneration::Choice> choices;
    for (std::uint32_t i = 0; i < num_choices; ++i) {
      AssemblyRules rules{.stop = stop, .ending_token_ids = {kImEnd}, .own_stop_token_ids = {}};
      choices.push_back({.sequence = SequenceId{i}, .prompt_index = 0, .rules = std::move(rules)});
    }
    generation = std::make_unique<RunningGeneration>(
        tiny_tokenizer(), std::vector<std::vector<TokenId>>{{1, 2, 3}}, std::move(choices),
        [this](const engine::Cancel& cancel) { cancels.push_back(cancel); }, [this] { ++wakes; },
        keeps_answer, std::move(prompt_rules));
  }
  bool token(TokenId id, std::uint32_t choice = 0) {
    return generation->sink(choice)->on_token({.token = id, .logprob = 0.0F, .top = {}});
  }
  void finish(FinishReason reason, std::optional<CancelCause> cause = {},
              std::uint32_t choice = 0) {
    engine::FinishEvent event;
    event.reason = reason;
    event.cancel_cause = cause;
    event.usage.cached_tokens = 2 + choice;
    generation->sink(choice)->on_finish(event);
  }

  std::vector<engine::Cancel> cancels;
  int wakes = 0;
  std::unique_ptr<RunningGeneration> generation;
};

}  // namespace

TEST_CASE("RunningGeneration: one wake for each poll", "[server]") {
  Harness harness;
  CHECK(harness.token('a'));
  CHECK(harness.token('b'));
  CHECK(harness.wakes == 1);
  const auto deltas = harness.generation->poll();
  REQUIRE(deltas.size() == 1);
  CHECK(deltas[0].text == "ab");
  CHECK(harness.generation->poll().empty());
  CHECK(harness.token('c'));
  CHECK(harness.wakes == 2);
  harness.finish(FinishReason::kLength);
  CHECK(harness.wakes == 2);
  CHECK(!harness.generation->done());
  CHECK(harness.generation->poll()[0].finish == FinishReason::kLength);
  CHECK(harness.generation->done());
  CHECK(harness.cancels.empty());
}

TEST_CASE("RunningGeneration: past its bound the queue refuses tokens, never the finish",
          "[server]") {
  Harness harness;
  std::size_t taken = 0;
  while (taken < 1'000'000 && harness.token('a')) ++taken;
  CHECK(taken * sizeof(engine::TokenEvent) <= RunningGeneration::kMaxQueuedBytes);
  CHECK(taken > 1000);
  harness.finish(FinishReason::kCancelled, CancelCause::kSlowClient);
  const auto deltas = harness.generation->poll();
  CHECK(deltas[0].text.size() == taken);
  CHECK(deltas[0].error->code == ErrorCode::kCancelled);
  CHECK(harness.generation->done());
}

TEST_CASE(
    "RunningGeneration: each choice has a bound of its own, and one that its door keeps a larger",
    "[server]") {
  Harness stream(2);
  std::size_t taken = 0;
  while (taken < 1'000'000 && stream.token('a', 0)) ++taken;
  CHECK(stream.token('a', 1));
  CHECK(stream.generation->poll().size() == 2);
  CHECK(stream.token('a', 0));
  Harness kept(1, {}, /*keeps_answer=*/true);
  std::size_t kept_tokens = 0;
  while (kept_tokens < 1'000'000 && kept.token('a')) ++kept_tokens;
  CHECK(kept_tokens > 10 * taken);
  CHECK(kept_tokens * sizeof(engine::TokenEvent) <= RunningGeneration::kMaxQueuedBytesOfKept);
}

TEST_CASE("RunningGeneration: a stop string cancels with the counted tokens and finishes as a stop",
          "[server]") {
  Harness harness(1, {"bc"});
  for (const char c : std::string("abcde")) CHECK(harness.token(static_cast<TokenId>(c)));
  auto deltas = harness.generation->poll();
  REQUIRE(harness.cancels.size() == 1);
  CHECK(harness.cancels[0].cause == CancelCause::kStopString);
  CHECK(harness.cancels[0].counted_tokens == 3U);
  CHECK(deltas[0].text == "a");
  CHECK(!deltas[0].finish);
  harness.finish(FinishReason::kCancelled, CancelCause::kStopString);
  deltas = harness.generation->poll();
  CHECK(deltas[0].finish == FinishReason::kStop);
  CHECK(deltas[0].stop_string == "bc");
  CHECK(harness.generation->usage().completion_tokens == 3);
}

TEST_CASE("RunningGeneration: choices begin when their prompt's logprobs are complete",
          "[server]") {
  PromptRules rules;
  rules.echo = {{.text = "\x01\x02\x03"}};
  rules.echo_top = 1;
  Harness harness(2, {}, false, rules);
  const auto scores = [](std::uint32_t first_token) {
    PromptLogprobs piece;
    piece.first_token = first_token;
    piece.tokens = {{-1.0F, 7}};
    piece.num_top = 1;
    piece.top = {{'z', -0.5F}};
    return piece;
  };
  // The second choice is ahead of what the first one brings.
  CHECK(harness.token('b', 1));
  harness.finish(FinishReason::kLength, {}, 1);
  CHECK(harness.generation->poll().empty());
  harness.generation->sink(0)->on_prompt_logprobs(scores(1));
  CHECK(harness.generation->poll().empty());
  harness.generation->sink(0)->on_prompt_logprobs(scores(2));
  auto deltas = harness.generation->poll();
  REQUIRE(deltas.size() == 1);
  CHECK(deltas[0].choice_index == 1);
  CHECK(deltas[0].text ==
        "\x01\x02\x03"
        "b");
  CHECK(deltas[0].finish == FinishReason::kLength);
  REQUIRE(deltas[0].logprobs.size() == 3);
  CHECK(!deltas[0].logprobs[0].has_logprob);
  CHECK(deltas[0].logprobs[2].chosen.token == 3);
  CHECK(deltas[0].logprobs[2].rank == 7);
  CHECK(deltas[0].logprobs[2].top.at(0).token == 'z');
  CHECK(deltas[0].echo.text_bytes == 3);
  CHECK(deltas[0].echo.num_entries == 3);
  CHECK(harness.token('a', 0));
  deltas = harness.generation->poll();
  CHECK(deltas.at(0).text ==
        "\x01\x02\x03"
        "a");
  CHECK(harness.token('a', 0));
  CHECK(harness.generation->poll().at(0).text == "a");
  CHECK(harness.generation->prompt_logprobs(0).size() == 3);
}

TEST_CASE("RunningGeneration: a failure does not wait for the prompt's logprobs", "[server]") {
  PromptRules rules;
  rules.listed_top = 1;
  Harness harness(2, {}, false, rules);
  CHECK(harness.token('b', 1));
  harness.finish(FinishReason::kCancelled, CancelCause::kDeadline, 0);
  const auto deltas = harness.generation->poll();
  REQUIRE(deltas.size() == 1);
  CHECK(deltas[0].error->code == ErrorCode::kDeadlineExceeded);
}

TEST_CASE("RunningGeneration: a prompt counts once, whatever n", "[server]") {
  Harness harness(2);
  CHECK(harness.token('a', 0));
  CHECK(harness.token('b', 1));
  harness.finish(FinishReason::kLength, {}, 0);
  harness.finish(FinishReason::kLength, {}, 1);
  CHECK(harness.generation->poll().size() == 2);
  const Usage usage = harness.generation->usage();
  CHECK(usage.prompt_tokens == 3);
  CHECK(usage.completion_tokens == 2);
  CHECK(usage.cached_tokens == 2);
}

TEST_CASE("RunningGeneration: what the engine ended is an error of its cause", "[server]") {
  const auto code_of = [](CancelCause cause) {
    Harness harness;
    harness.finish(FinishReason::kCancelled, cause);
    return harness.generation->poll().at(0).error.value().code;
  };
  CHECK(code_of(CancelCause::kDrain) == ErrorCode::kDraining);
  CHECK(code_of(CancelCause::kDeadline) == ErrorCode::kDeadlineExceeded);
  CHECK(code_of(CancelCause::kSlowClient) == ErrorCode::kCancelled);
}

TEST_CASE("RunningGeneration: its end cancels what runs and wakes nobody any more", "[server]") {
  Harness harness(2);
  harness.finish(FinishReason::kLength, {}, 0);
  CHECK(harness.generation->poll().size() == 1);
  const auto sink = harness.generation->sink(1);
  harness.wakes = 0;
  harness.generation.reset();
  REQUIRE(harness.cancels.size() == 1);
  CHECK(harness.cancels[0].id == SequenceId{1});
  CHECK(harness.cancels[0].cause == CancelCause::kClientGone);
  CHECK(sink->on_token({.token = 'a', .logprob = 0.0F, .top = {}}));
  CHECK(harness.wakes == 0);
}
