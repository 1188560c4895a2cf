// What a sequence is expected to need, what is kept for it, and that forecasts follow what ends.
#include "scheduler/forecast.h"

#include "tests/scheduler/step_fixture.h"
#include "tests/support/catch.h"

namespace kvasir::scheduler {
namespace {

using testing::Loop;
using testing::repeat;
using testing::request;

Sequence sequence(std::uint32_t prompt, std::uint32_t generated, std::uint32_t max_tokens,
                  std::uint32_t min_tokens = 0) {
  Sequence made;
  Request wanted = request(repeat(7, prompt), max_tokens);
  wanted.stop.min_tokens = min_tokens;
  made.request = std::make_shared<const Request>(wanted);
  made.tokens = repeat(7, prompt + generated);
  made.num_prompt_tokens = prompt;
  made.max_total_tokens = prompt + max_tokens;
  return made;
}

SchedulerState state_with_mean(std::uint32_t tokens) {
  SchedulerState state;
  state.lengths.mean_256ths = std::uint64_t{tokens} * 256;
  return state;
}

}  // namespace

TEST_CASE("A forecast: is what the mean leaves, and never nothing", "[scheduler]") {
  const SchedulerState state = state_with_mean(40);
  CHECK(forecast_remaining_tokens(state, sequence(5, 0, 100)) == 40);
  CHECK(forecast_remaining_tokens(state, sequence(5, 25, 100)) == 15);
  CHECK(forecast_remaining_tokens(state, sequence(5, 35, 100)) == 10);  // a quarter of the mean
  CHECK(forecast_remaining_tokens(state, sequence(5, 80, 100)) == 10);
  CHECK(forecast_remaining_tokens(state_with_mean(0), sequence(5, 80, 100)) == 1);
}

TEST_CASE("A forecast: keeps to max_tokens and min_tokens", "[scheduler]") {
  const SchedulerState state = state_with_mean(40);
  CHECK(forecast_remaining_tokens(state, sequence(5, 0, 30)) == 30);
  CHECK(forecast_remaining_tokens(state, sequence(5, 29, 30)) == 1);
  CHECK(forecast_remaining_tokens(state, sequence(5, 10, 100, 60)) == 50);
  CHECK(forecast_remaining_tokens(state, sequence(5, 0, 0)) == 0);
  CHECK(forecast_cached_tokens(state, sequence(5, 0, 0)) == 5);
  // The last generated token is never computed.
  CHECK(forecast_cached_tokens(state, sequence(5, 29, 30)) == 34);
  CHECK(forecast_cached_tokens(state, sequence(5, 0, 1)) == 5);
}

TEST_CASE("A forecast: follows the answers that end, and starts low", "[scheduler]") {
  AnswerLengths lengths;
  CHECK(lengths.mean_tokens() == kFirstForecastTokens);
  for (int i = 0; i < 100; ++i) lengths.add(500);
  CHECK(lengths.mean_tokens() >= 490);
  lengths.add(20);
  CHECK(lengths.mean_tokens() < 490);
  CHECK(lengths.mean_tokens() > 450);
  for (int i = 0; i < 100; ++i) lengths.add(20);
  CHECK(lengths.mean_tokens() <= 25);
}

TEST_CASE("A forecast: learns of every end, and of no preemption", "[scheduler]") {
  Loop loop(6);
  const auto mean = [&] { return loop.state.lengths.mean_256ths; };
  loop.submit(1, request(repeat(7, 8), 8));
  loop.submit(2, request(repeat(5, 8), 8));
  while (loop.state.totals.preemptions == 0) loop.step();
  CHECK(mean() == 0);
  CHECK(loop.state.num_preempted() == 1);
  REQUIRE(remove(loop.state, loop.kv, SequenceId{2}).has_value());  // it had generated 5
  CHECK(mean() == 5 * 256 / 16);
  CHECK(loop.state.num_preempted() == 0);
  loop.run_until_empty(20);
  CHECK(mean() == (5 * 256 / 16 * 15 + 8 * 256) / 16);
  const std::uint64_t before = mean();
  loop.submit(3, request(repeat(5, 8), 80));  // can never fit
  loop.step();
  CHECK(mean() == before);
}

TEST_CASE("An expected length: keeps newcomers out whose room is needed soon", "[scheduler]") {
  Loop loop(10);
  loop.state.lengths.mean_256ths = std::uint64_t{12} * 256;
  loop.submit(1, request(repeat(1, 8), 20));
  loop.submit(2, request(repeat(2, 8), 20));
  loop.submit(3, request(repeat(3, 8), 20));
  // 8 + 12 - 1 tokens are 5 blocks: two of them, not three.
  CHECK(loop.step() == "admit 1+0 2+0 | run 1@0x8+2* 2@0x8+2*");
  for (int i = 0; i < 10; ++i) CHECK(loop.step().find("admit") == std::string::npos);
}

TEST_CASE("Reserved blocks: are what the immune do not hold of their worst cases", "[scheduler]") {
  Loop loop(20, {.admission = AdmissionPolicy::kReserve});
  loop.submit(1, request(repeat(1, 8), 9));  // 16 tokens, 4 blocks
  loop.submit(2, request(repeat(2, 3), 2));  // 4 tokens, 1 block
  CHECK(reserved_blocks(loop.state, loop.kv) == 0);
  loop.step();
  CHECK(reserved_blocks(loop.state, loop.kv) == 2);
  loop.step();
  CHECK(reserved_blocks(loop.state, loop.kv) == 1);
  loop.run_until_empty(20);
  CHECK(reserved_blocks(loop.state, loop.kv) == 0);
}

TEST_CASE("Reserved blocks: shrink to what a decode can need where there are windows",
          "[scheduler]") {
  Loop loop(testing::windowed_cache(200, 8, 16), {.admission = AdmissionPolicy::kReserve});
  loop.submit(1, request(repeat(1, 32), 9));
  loop.begin();
  // Worst case with chunks of 16: 7 stripes in the windows, 10 without; 4 of each are held.
  CHECK(reserved_blocks(loop.state, loop.kv) == 7 * 5 + 10 - 4 * 6);
  loop.end();
  loop.step();
  // One token at a time: 3 stripes in the windows, where (32 + 1 - 8) / 4 = 6 are behind them.
  CHECK(reserved_blocks(loop.state, loop.kv) == 3 * 5 + 10 - (2 * 5 + 8));
}

TEST_CASE("Under reserve: nobody is preempted, and what waits is admitted when there is room",
          "[scheduler]") {
  Loop loop(6, {.admission = AdmissionPolicy::kReserve});
  for (std::uint64_t id = 1; id <= 6; ++id) {
    loop.submit(id, request(repeat(static_cast<TokenId>(id), 8), 8));  // 15 tokens, 4 blocks
  }
  CHECK(loop.step() == "admit 1+0! | run 1@0x8+2*");
  CHECK(loop.run_until_empty(100) < 100);
  CHECK(loop.finishes.size() == 6);
  CHECK(loop.state.totals.preemptions == 0);
}

}  // namespace kvasir::scheduler
