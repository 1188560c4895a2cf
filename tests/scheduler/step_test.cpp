// What the verbs of a step do together: answers end for the right reason, counters add up, blocks
// come home.
#include "tests/scheduler/step_fixture.h"
#include "tests/support/catch.h"

namespace kvasir::scheduler {
namespace {

using testing::Loop;
using testing::repeat;
using testing::request;

std::uint32_t computed_in(const StepPlan& plan) {
  std::uint32_t tokens = 0;
  for (const Chunk& chunk : plan.chunks) tokens += chunk.num_tokens;
  return tokens;
}

}  // namespace

TEST_CASE("A sequence: is computed in chunks, then token by token, and ends by length",
          "[scheduler]") {
  Loop loop(10, {.max_step_tokens = 4});
  loop.submit(1, request(repeat(7, 6), 3));
  CHECK(loop.step() == "admit 1+0 | run 1@0x4+1");
  CHECK(loop.step() == "run 1@4x2+1*");
  CHECK(loop.step() == "run 1@6x1*");
  CHECK(loop.step() == "run 1@7x1*");
  REQUIRE(loop.finish(1) != nullptr);
  CHECK(loop.finish(1)->reason == FinishReason::kLength);
  CHECK(loop.finish(1)->sequence.tokens == std::vector<TokenId>{7, 7, 7, 7, 7, 7, 6, 7, 8});
  CHECK(loop.state.empty());
  CHECK(loop.kv.num_free_blocks() == 10);
  CHECK(loop.step() == "idle");
}

TEST_CASE("A sequence: ends at a stop token and says which", "[scheduler]") {
  Loop loop(10);
  Request wanted = request(repeat(7, 6), 9);
  wanted.stop.stop_token_ids = {2, 8, 90};
  loop.submit(1, wanted);
  loop.run_until_empty(10);
  REQUIRE(loop.finish(1) != nullptr);
  CHECK(loop.finish(1)->reason == FinishReason::kStop);
  CHECK(loop.finish(1)->stop_token == TokenId{8});
  CHECK(loop.finish(1)->sequence.num_generated() == 3);
}

TEST_CASE("A sequence: ends where the context is full", "[scheduler]") {
  Loop loop(10, {.context_tokens = 8});
  loop.submit(1, request(repeat(7, 6), 9));
  loop.submit(2, request(repeat(5, 8), 9));
  loop.run_until_empty(10);
  CHECK(loop.finish(1)->reason == FinishReason::kLength);
  CHECK(loop.finish(1)->sequence.num_tokens() == 8);
  CHECK(loop.finish(2)->reason == FinishReason::kError);
  CHECK(loop.finish(2)->error->code == ErrorCode::kContextLengthExceeded);
}

TEST_CASE("A sequence: uses its last slot, for the last generated token is never computed",
          "[scheduler]") {
  Loop loop(2);
  loop.submit(1, request(repeat(7, 3), 6));  // 3 + 6 - 1 = 8 slots
  loop.run_until_empty(20);
  CHECK(loop.finish(1)->reason == FinishReason::kLength);
  CHECK(loop.finish(1)->sequence.num_generated() == 6);
}

TEST_CASE("A sequence: one token more than fits is refused with bytes and the longest prompt",
          "[scheduler]") {
  Loop loop(2);
  loop.submit(1, request(repeat(7, 3), 7));
  CHECK(loop.step() == "reject 1:too-long");
  REQUIRE(loop.finish(1) != nullptr);
  CHECK(loop.finish(1)->error->code == ErrorCode::kContextLengthExceeded);
  // 9 tokens are 3 blocks; a block is 2 tiles of 64 bytes; 8 slots - 6 = 2.
  CHECK(
      loop.finish(1)->error->message ==
      "the KV cache of 3 prompt tokens and 7 generated ones needs 384 bytes and the budget is 256 "
      "bytes; the longest prompt that fits with as many generated tokens has 2 tokens");
  CHECK(loop.state.empty());
  CHECK(loop.state.totals.rejected == 1);
}

TEST_CASE("A sequence: for which no token is allowed ends with an error", "[scheduler]") {
  Loop loop(10);
  loop.submit(1, request(repeat(7, 3), 7));
  loop.begin();
  StepResult result;
  result.sampled.emplace_back().sequence = SequenceId{1};
  result.sampled[0].all_banned = true;
  const StepEvents events = absorb(loop.last_plan, result, loop.state, loop.kv, loop.now);
  CHECK(events.tokens.empty());
  REQUIRE(events.finishes.size() == 1);
  CHECK(events.finishes[0].reason == FinishReason::kError);
  CHECK(events.finishes[0].sequence.num_generated() == 0);
  CHECK(loop.kv.num_free_blocks() == 10);
}

TEST_CASE("Choices of one prompt: the prompt is computed once", "[scheduler]") {
  Loop loop(40);
  for (std::uint64_t id = 1; id <= 5; ++id) loop.submit(id, request(repeat(7, 22), 2));
  CHECK(loop.step() == "admit 1+0 | run 1@0x22+6*");
  CHECK(loop.step() ==
        "admit 2+21<1 3+21<1 4+21<1 5+21<1 | run 1@22x1* 2@21x1+1* 3@21x1+1* 4@21x1+1* 5@21x1+1*");
  loop.run_until_empty(5);
  CHECK(loop.finishes.size() == 5);
  CHECK(loop.state.totals.prefix_hit_tokens == 4 * 21);
  CHECK(loop.finish(5)->sequence.cached_tokens == 21);
}

TEST_CASE("A waiter: takes over when the one that computes its prefix is gone", "[scheduler]") {
  Loop loop(40, {.max_step_tokens = 8});
  for (std::uint64_t id = 1; id <= 3; ++id) loop.submit(id, request(repeat(7, 30), 2));
  CHECK(loop.step() == "admit 1+0 | run 1@0x8+2");
  CHECK(loop.step() == "run 1@8x8+2");
  REQUIRE(remove(loop.state, loop.kv, SequenceId{1}).has_value());
  CHECK(loop.step() == "admit 2+16 | run 2@16x8+2");  // what the first one had computed is not lost
  CHECK(loop.step() == "run 2@24x6+2*");
  CHECK(loop.step() == "admit 3+29<2 | run 2@30x1* 3@29x1+1*");
}

TEST_CASE("A waiter: of another salt does not wait and finds nothing", "[scheduler]") {
  Loop loop(40);
  loop.submit(1, request(repeat(7, 22), 2));
  Request salted = request(repeat(7, 22), 2);
  salted.cache_salt = 1;
  loop.submit(2, salted);
  CHECK(loop.step() == "admit 1+0 2+0 | run 1@0x22+6* 2@0x22+6*");
}

TEST_CASE("A cancelled sequence: gives its blocks back at once, running or waiting",
          "[scheduler]") {
  Loop loop(4, {.max_sequences = 1});
  loop.submit(1, request(repeat(7, 9), 5));
  loop.submit(2, request(repeat(5, 9), 5));
  loop.step();
  CHECK(loop.kv.num_live_blocks() == 3);
  const std::optional<Sequence> removed = remove(loop.state, loop.kv, SequenceId{1});
  REQUIRE(removed.has_value());
  CHECK(removed->num_generated() == 1);
  CHECK(loop.kv.num_live_blocks() == 0);
  CHECK(loop.kv.num_sequences() == 0);
  CHECK_FALSE(remove(loop.state, loop.kv, SequenceId{1}).has_value());
  REQUIRE(remove(loop.state, loop.kv, SequenceId{2}).has_value());
  CHECK(loop.state.empty());
}

TEST_CASE("A deadline: ends the waiting and the running and brings blocks home", "[scheduler]") {
  Loop loop(8, {.max_sequences = 1});
  Request wanted = request(repeat(7, 9), 5);
  wanted.deadline = TimePoint{} + std::chrono::milliseconds(10);
  loop.submit(1, wanted);
  loop.submit(2, wanted);
  loop.step();
  loop.now += std::chrono::milliseconds(10);
  CHECK(loop.step() == "reject 1:deadline 2:deadline");
  REQUIRE(loop.finishes.size() == 2);
  CHECK(loop.finishes[0].error->code == ErrorCode::kDeadlineExceeded);
  CHECK(loop.kv.num_free_blocks() == 8);
  CHECK(loop.state.empty());
}

TEST_CASE("A failed execution: ends every sequence of the step and publishes nothing of it",
          "[scheduler]") {
  Loop loop(20, {.max_sequences = 2});
  for (std::uint64_t id = 1; id <= 3; ++id) {
    loop.submit(id, request(repeat(static_cast<TokenId>(id), 9), 5));
  }
  loop.begin();
  const std::vector<Finish> failed =
      fail_step(loop.last_plan, {ErrorCode::kInternal, "broken", ""}, loop.state, loop.kv);
  REQUIRE(failed.size() == 2);
  CHECK(failed[0].reason == FinishReason::kError);
  CHECK(failed[1].error->message == "broken");
  CHECK(loop.kv.num_free_blocks() == 20);
  CHECK(loop.kv.num_cached_blocks() == 0);
  loop.kv.check_integrity();
  CHECK(loop.step() == "admit 3+0 | run 3@0x9+3*");
}

TEST_CASE("Preemption: the last gives way, comes back, and nothing of its answer is lost",
          "[scheduler]") {
  Loop loop(6);
  loop.submit(1, request(repeat(7, 8), 8));
  loop.submit(2, request(repeat(5, 8), 8));
  loop.step();
  CHECK(loop.step() == "run 1@8x1+1* 2@8x1+1*");
  for (int i = 0; i < 3; ++i) loop.step();
  CHECK(loop.begin() == "preempt 2 | run 1@12x1+1*");
  CHECK(loop.state.waiting[0].num_generated() == 5);
  CHECK(loop.state.waiting[0].num_computed_tokens == 0);
  loop.end();
  loop.run_until_empty(30);
  REQUIRE(loop.finish(2) != nullptr);
  CHECK(loop.finish(2)->sequence.num_generated() == 8);
  CHECK(loop.finish(2)->sequence.preemptions == 1);
  CHECK(loop.finish(1)->sequence.preemptions == 0);
  CHECK(loop.state.totals.preemptions == 1);
}

TEST_CASE("Preemption: after so many times a sequence is reserved for and runs to its end",
          "[scheduler]") {
  Loop loop(6, {.preemptions_before_reserve = 1});
  loop.submit(1, request(repeat(7, 8), 8));
  loop.submit(2, request(repeat(5, 8), 8));
  while (loop.state.totals.preemptions == 0) loop.step();
  std::string admitted;
  while (admitted.empty()) {
    const std::string text = loop.step();
    if (!loop.last_plan.admit.empty()) admitted = text;
  }
  CHECK(loop.last_plan.admit[0].reserves_worst_case);
  CHECK(loop.state.running.back().immune);
  loop.submit(3, request(repeat(3, 4), 2));
  loop.run_until_empty(40);
  CHECK(loop.finish(2)->sequence.preemptions == 1);
  CHECK(loop.finishes.size() == 3);
}

TEST_CASE("Usage: tokens are computed, found and computed again, and every one is counted",
          "[scheduler]") {
  Loop loop(6);
  const auto tick = [&] { loop.now += std::chrono::milliseconds(1); };
  loop.submit(1, request(repeat(7, 8), 8));
  loop.submit(2, request(repeat(5, 8), 8));
  std::uint64_t computed = 0;
  while (!loop.state.empty()) {
    tick();
    loop.begin();
    computed += computed_in(loop.last_plan);
    tick();
    loop.end();
  }
  const Usage first = usage_of(loop.finish(1)->sequence, loop.now);
  CHECK(first.prompt_tokens == 8);
  CHECK(first.completion_tokens == 8);
  CHECK(first.cached_tokens == 0);
  CHECK(first.computed_tokens == 15);
  CHECK(first.recomputed_tokens == 0);
  CHECK(first.queue_time == std::chrono::milliseconds(1));
  CHECK(first.prefill_time == std::chrono::milliseconds(1));
  const Usage second = usage_of(loop.finish(2)->sequence, loop.now);
  CHECK(second.preemptions == 1);
  CHECK(second.recomputed_tokens > 0);
  CHECK(second.computed_tokens == 15 + second.recomputed_tokens);
  CHECK(first.computed_tokens + second.computed_tokens == computed);
  CHECK(loop.state.totals.computed_tokens == computed);
  CHECK(loop.state.totals.recomputed_tokens == second.recomputed_tokens);
  CHECK(loop.state.totals.generation_tokens == 16);
  CHECK(loop.state.totals.prompt_tokens == 16);
}

TEST_CASE("Usage: a sequence that was never admitted has waited all its time", "[scheduler]") {
  Loop loop(2, {.max_sequences = 1});
  loop.submit(1, request(repeat(7, 2), 2));
  const Usage usage = usage_of(loop.state.waiting[0], TimePoint{} + std::chrono::milliseconds(4));
  CHECK(usage.queue_time == std::chrono::milliseconds(4));
  CHECK(usage.prefill_time == Duration{});
  CHECK(usage.decode_time == Duration{});
}

TEST_CASE("More decodes than step tokens: every one gets its turn", "[scheduler]") {
  Loop loop(60, {.max_step_tokens = 16});
  for (std::uint64_t id = 1; id <= 6; ++id) {
    loop.submit(id, request(repeat(static_cast<TokenId>(id), 2), 20));
  }
  loop.step();
  loop.submit(7, request(repeat(9, 40), 3));
  loop.step();  // 7 has begun its prompt: 10 tokens of 40
  loop.limits.max_step_tokens = 3;
  for (int i = 0; i < 14; ++i) loop.step();  // 42 turns for 7 sequences
  for (std::uint64_t id = 1; id <= 6; ++id) {
    CAPTURE(id);
    CHECK(loop.state.find(SequenceId{id})->num_generated() == 2 + 6);
  }
  CHECK(loop.state.find(SequenceId{7})->num_computed_tokens == 10 + 6);
  loop.run_until_empty(200);
  CHECK(loop.finishes.size() == 7);
}

TEST_CASE("A state: can be copied, and copies plan alike", "[scheduler]") {
  Loop loop(6);
  for (std::uint64_t id = 1; id <= 4; ++id) loop.submit(id, request(repeat(7, 3 * id), 4));
  loop.step();
  const SchedulerState copy = loop.state;
  CHECK(plan(copy, loop.kv, loop.limits, loop.now) ==
        plan(loop.state, loop.kv, loop.limits, loop.now));
  CHECK(to_text(copy) == to_text(loop.state));
  CHECK(to_text(copy).find(
            "running 1 priority 0 computed 3/4 of 7 prompt 3 preempted 0 waited 0") == 0);
}

}  // namespace kvasir::scheduler
