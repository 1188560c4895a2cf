// Rows of a prompt whose logprobs are wanted: each is delivered once, in order, through chunks and
// preemption; and sequences that end without a token.
#include "tests/scheduler/step_fixture.h"
#include "tests/support/catch.h"

using namespace kvasir;
using namespace kvasir::scheduler;
using namespace kvasir::scheduler::testing;

namespace {

Request scoring(std::vector<TokenId> prompt, std::uint32_t max_tokens) {
  Request wanted = request(std::move(prompt), max_tokens);
  wanted.prompt_logprobs = 0;
  return wanted;
}

/// Takes what the last step told of a sequence's prompt; `next` is the token it must go on with.
void take_scores(const Loop& loop, std::uint64_t id, std::uint32_t& next) {
  for (const PromptLogprobs& scores : loop.last_events.prompts) {
    if (scores.sequence != SequenceId{id}) continue;
    CHECK(scores.first_token == next);
    next += static_cast<std::uint32_t>(scores.tokens.size());
  }
}

}  // namespace

TEST_CASE("Prompt logprobs: every token but the first comes once, whatever the chunks",
          "[scheduler]") {
  for (const std::uint32_t step_tokens : {1U, 2U, 5U, 100U}) {
    Loop loop(10, {.max_step_tokens = step_tokens});
    loop.submit(1, scoring(repeat(7, 11), 2));
    std::uint32_t next = 1;
    while (!loop.state.empty()) {
      loop.step();
      take_scores(loop, 1, next);
    }
    CHECK(next == 11);
    CHECK(loop.finish(1)->sequence.num_generated() == 2);
  }
}

TEST_CASE("Prompt logprobs: a preempted sequence computes again and delivers nothing twice",
          "[scheduler]") {
  // Three prompts of 16 tokens grow in chunks, in room for two and a half of them.
  Loop loop(10, {.max_step_tokens = 7, .preemptions_before_reserve = 2});
  std::uint32_t next[] = {1, 1, 1};
  for (std::uint64_t id = 0; id < 3; ++id) {
    loop.submit(id, scoring(repeat(static_cast<TokenId>(id), 12), 14));
  }
  std::uint32_t steps = 0;
  while (!loop.state.empty() && ++steps < 500) {
    loop.step();
    for (std::uint64_t id = 0; id < 3; ++id) take_scores(loop, id, next[id]);
  }
  CHECK(loop.state.totals.preemptions > 0);
  for (std::uint64_t id = 0; id < 3; ++id) {
    CHECK(next[id] == 12);
    CHECK(loop.finish(id)->sequence.num_generated() == 14);
  }
}

TEST_CASE("Prompt logprobs: a cached prefix is not taken, and what is computed is published",
          "[scheduler]") {
  Loop loop(20);
  loop.submit(1, request(repeat(7, 9), 1));
  loop.run_until_empty(10);
  loop.submit(2, scoring(repeat(7, 9), 1));
  CHECK(loop.step() == "admit 2+0 | run 2@0x9+3*0");
  CHECK(loop.finish(2)->sequence.cached_tokens == 0);
  loop.submit(3, scoring(repeat(8, 9), 1));
  loop.run_until_empty(10);
  loop.submit(4, request(repeat(8, 9), 1));
  CHECK(loop.step() == "admit 4+8 | run 4@8x1+1*");
}

TEST_CASE("Prompt logprobs: with no token to generate the prompt alone is computed",
          "[scheduler]") {
  for (const std::uint32_t prompt_tokens : {1U, 8U, 9U}) {
    Loop loop(4, {.max_step_tokens = 5, .context_tokens = 9});
    loop.submit(1, scoring(repeat(7, prompt_tokens), 0));
    std::uint32_t next = 1;
    while (!loop.state.empty()) {
      loop.step();
      take_scores(loop, 1, next);
      CHECK(loop.last_events.tokens.empty());
    }
    CHECK(next == prompt_tokens);
    REQUIRE(loop.finish(1) != nullptr);
    CHECK(loop.finish(1)->reason == FinishReason::kLength);
    CHECK(loop.finish(1)->sequence.num_computed_tokens == prompt_tokens);
    CHECK(loop.kv.num_free_blocks() == 4);
  }
}

TEST_CASE("A sequence without an allowed token ends with the error of whoever is at fault",
          "[scheduler]") {
  const auto code_of = [](std::uint32_t min_tokens, std::vector<TokenId> stop_ids) {
    Loop loop(4);
    Request wanted = request(repeat(7, 3), 4);
    wanted.stop.min_tokens = min_tokens;
    wanted.stop.stop_token_ids = std::move(stop_ids);
    loop.submit(1, std::move(wanted));
    loop.all_banned = true;
    loop.run_until_empty(5);
    REQUIRE(loop.finish(1) != nullptr);
    CHECK(loop.kv.num_free_blocks() == 4);
    return loop.finish(1)->error.value().code;
  };
  CHECK(code_of(2, {1}) == ErrorCode::kInvalidValue);  // the request banned all there was
  CHECK(code_of(0, {1}) == ErrorCode::kInternal);      // nothing was banned: NaN all over
  CHECK(code_of(2, {}) == ErrorCode::kInternal);
}
