// Priority, arrival and age: who comes first, and that nobody waits for ever.
#include "scheduler/service_order.h"

#include "tests/scheduler/step_fixture.h"
#include "tests/support/catch.h"

#include <limits>

namespace kvasir::scheduler {
namespace {

using testing::Loop;
using testing::repeat;
using testing::request;

constexpr std::int32_t kHighest = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kLowest = std::numeric_limits<std::int32_t>::max();

Sequence sequence(std::int32_t priority, std::uint64_t arrival, std::uint64_t waited = 0) {
  Sequence made;
  made.priority = priority;
  made.arrival_order = arrival;
  made.waited_steps = waited;
  return made;
}

Request urgent(TokenId token, std::int32_t priority) {
  Request made = request(repeat(token, 3), 4);
  made.priority = priority;
  return made;
}

}  // namespace

TEST_CASE("Service order: lower priority numbers first, then earlier arrivals", "[scheduler]") {
  CHECK(waiting_before(sequence(0, 5), sequence(1, 2)));
  CHECK(waiting_before(sequence(-1, 5), sequence(0, 2)));
  CHECK(waiting_before(sequence(0, 2), sequence(0, 5)));
  CHECK_FALSE(waiting_before(sequence(0, 5), sequence(0, 5)));
  CHECK(running_before(sequence(0, 5), sequence(1, 2, 10'000)));  // the running do not age
}

TEST_CASE("Service order: age is worth more and more", "[scheduler]") {
  CHECK(aging_bonus(0) == 0);
  CHECK(aging_bonus(kAgingSteps - 1) == 0);
  CHECK(aging_bonus(kAgingSteps) == 1);
  CHECK(aging_bonus(2 * kAgingSteps) == 3);
  CHECK(aging_bonus(10 * kAgingSteps) == 1023);
  std::int64_t previous = -1;
  for (std::uint64_t intervals = 0; intervals < 100; ++intervals) {
    REQUIRE(aging_bonus(intervals * kAgingSteps) > previous);
    previous = aging_bonus(intervals * kAgingSteps);
  }
  CHECK(aging_bonus(std::numeric_limits<std::uint64_t>::max()) > previous);
}

TEST_CASE("Service order: 33 intervals put the least before the most important", "[scheduler]") {
  for (const std::uint64_t already : {0U, 1U, 40U, 1000U}) {
    const Sequence old = sequence(kLowest, 9, (already + 33) * kAgingSteps);
    CHECK(waiting_before(old, sequence(kHighest, 1, already * kAgingSteps)));
  }
}

TEST_CASE("Service order: the important are admitted first, whenever they came", "[scheduler]") {
  Loop loop(20, {.max_sequences = 2});
  loop.submit(1, urgent(1, 5));
  loop.submit(2, urgent(2, 0));
  loop.submit(3, urgent(3, -3));
  loop.submit(4, urgent(4, 0));
  CHECK(loop.step() == "admit 3+0 2+0 | run 3@0x3+1* 2@0x3+1*");
}

TEST_CASE("Service order: the least important is served under a load that never ends",
          "[scheduler]") {
  Loop loop(4, {.max_sequences = 2});
  loop.submit(1, urgent(1, kLowest));
  std::uint64_t next_id = 2;
  std::uint64_t steps = 0;
  constexpr std::uint64_t kMost = 34 * kAgingSteps;
  while (loop.finish(1) == nullptr && steps++ < kMost) {
    while (loop.state.waiting.size() < 4) {
      loop.submit(next_id, urgent(static_cast<TokenId>(next_id), kHighest));
      ++next_id;
    }
    loop.finishes.clear();
    loop.step();
  }
  CHECK(steps < kMost);
  CHECK(steps > 10 * kAgingSteps);  // and not before its time
}

TEST_CASE("Service order: what is preempted keeps its place and its age", "[scheduler]") {
  Loop loop(6);
  loop.submit(1, request(repeat(7, 8), 8));
  loop.submit(2, request(repeat(5, 8), 8));
  while (loop.state.totals.preemptions == 0) loop.step();
  loop.submit(3, request(repeat(3, 2), 2));
  REQUIRE(loop.state.waiting.size() == 2);
  CHECK(loop.state.waiting[0].id == SequenceId{2});
}

}  // namespace kvasir::scheduler
