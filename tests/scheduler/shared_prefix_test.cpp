// Requests that begin alike and come together: what they share is computed once, to the token, by
// whoever leads; nothing is shared across salts or with the prefix cache off.
#include "tests/scheduler/step_fixture.h"
#include "tests/support/catch.h"

namespace kvasir::scheduler {
namespace {

using testing::Loop;
using testing::repeat;
using testing::request;

/// `shared` tokens 7 and then `own` tokens of another kind.
std::vector<TokenId> prompt(std::size_t shared, TokenId kind, std::size_t own) {
  std::vector<TokenId> tokens = repeat(7, shared);
  tokens.insert(tokens.end(), own, kind);
  return tokens;
}

kvcache::KvCacheOptions either_cache(bool windows) {
  return windows ? testing::windowed_cache(400, 6, 16) : testing::small_cache(60);
}

std::uint32_t cached_tokens(const Loop& loop, std::uint64_t id) {
  return loop.finish(id)->sequence.cached_tokens;
}

}  // namespace

TEST_CASE("A shared prefix: of two that come together is computed once, to the token",
          "[scheduler]") {
  const bool windows = GENERATE(false, true);
  Loop loop(either_cache(windows), {.max_step_tokens = 64});
  loop.submit(1, request(prompt(14, 1, 2), 3));
  loop.submit(2, request(prompt(14, 2, 5), 3));
  CHECK(loop.step() == "admit 1+0 | run 1@0x16+4*");
  // In either geometry: a window of 6 that has come to 16 has left position 8, but not the cache.
  CHECK(loop.step().starts_with("admit 2+14"));
  loop.run_until_empty(20);
  CHECK(cached_tokens(loop, 1) == 0);
  CHECK(cached_tokens(loop, 2) == 14);
  CHECK(loop.state.totals.computed_tokens == (16 + 2) + (5 + 2));
  CHECK(loop.state.totals.prefix_hit_tokens == 14);
  CHECK(loop.state.totals.prefix_query_tokens == 16 + 19);
}

TEST_CASE("A shared prefix: under another salt is not shared, running or cached", "[scheduler]") {
  const bool together = GENERATE(true, false);
  Loop loop(60);
  loop.submit(1, request(repeat(7, 22), 2));
  if (!together) loop.run_until_empty(5);
  Request salted = request(repeat(7, 22), 2);
  salted.cache_salt = 1;
  loop.submit(2, salted);
  CHECK(loop.step() ==
        (together ? "admit 1+0 2+0 | run 1@0x22+6* 2@0x22+6*" : "admit 2+0 | run 2@0x22+6*"));
  loop.run_until_empty(10);
  CHECK(cached_tokens(loop, 2) == 0);
}

TEST_CASE("A shared prefix: is not shared with the prefix cache off", "[scheduler]") {
  kvcache::KvCacheOptions options = testing::small_cache(60);
  options.prefix_cache_enabled = false;
  Loop loop(options);
  for (std::uint64_t id = 1; id <= 2; ++id) loop.submit(id, request(repeat(7, 22), 2));
  CHECK(loop.step() == "admit 1+0 2+0 | run 1@0x22+6* 2@0x22+6*");
  loop.submit(3, request(repeat(7, 22), 2));
  CHECK(loop.step() == "admit 3+0 | run 1@22x1* 2@22x1* 3@0x22+6*");
}

TEST_CASE("A shared prefix: when the leader dies a waiter leads, and loses nothing",
          "[scheduler]") {
  const bool windows = GENERATE(false, true);
  Loop loop(either_cache(windows), {.max_step_tokens = 10});
  for (std::uint64_t id = 1; id <= 3; ++id) loop.submit(id, request(repeat(7, 30), 2));
  CHECK(loop.step() == "admit 1+0 | run 1@0x10+3");
  CHECK(remove(loop.state, loop.kv, SequenceId{1}).has_value());
  CHECK(loop.step() == "admit 2+10 | run 2@10x10+3");
  CHECK(loop.step() == "run 2@20x10+3*");
  CHECK(loop.step().starts_with("admit 3+29"));
  loop.run_until_empty(5);
  CHECK(loop.state.totals.computed_tokens == 30 + 1 + 2);
}

TEST_CASE("A shared prefix: when the leader's step fails, a waiter computes it", "[scheduler]") {
  Loop loop(60);
  for (std::uint64_t id = 1; id <= 2; ++id) loop.submit(id, request(repeat(7, 22), 2));
  loop.begin();
  CHECK(
      fail_step(loop.last_plan, {ErrorCode::kInternal, "broken", ""}, loop.state, loop.kv).size() ==
      1);
  CHECK(loop.step() == "admit 2+0 | run 2@0x22+6*");
}

TEST_CASE("A shared prefix: a leader that is preempted keeps nobody waiting for ever",
          "[scheduler]") {
  Loop loop(10, {.max_step_tokens = 16});
  loop.submit(1, request(repeat(1, 15), 20));
  loop.step();
  loop.submit(2, request(repeat(7, 21), 2));
  loop.submit(3, request(repeat(7, 21), 2));
  CHECK(loop.step() == "admit 2+0 | run 1@15x1* 2@0x15+4");
  while (loop.state.totals.preemptions == 0) {
    CHECK(loop.state.find(SequenceId{3})->first_admitted_at == std::nullopt);
    loop.step();
  }
  CHECK(loop.state.find(SequenceId{2})->preemptions == 1);
  CHECK(loop.run_until_empty(60) < 60);
  CHECK(loop.finish(3)->sequence.num_generated() == 2);
}

TEST_CASE("A shared prefix: the less important leader is not waited for", "[scheduler]") {
  Loop loop(60);
  loop.submit(1, request(repeat(7, 22), 2));
  loop.limits.max_step_tokens = 4;
  loop.step();
  Request urgent = request(repeat(7, 22), 2);
  urgent.priority = -1;
  loop.submit(2, urgent);
  loop.limits.max_step_tokens = 64;
  CHECK(loop.step() == "admit 2+4 | run 1@4x18+5* 2@4x18+5*");
}

TEST_CASE("A shared prefix: where a window has left it and the cache lost it, it is computed",
          "[scheduler]") {
  // All layers windowed: what the first has computed leaves its table, and other prompts take the
  // blocks.
  kvcache::KvCacheOptions options = testing::small_cache(12);
  options.geometry.groups = {{1, 1, 8, 4}};
  options.geometry.largest_chunk = 8;
  Loop loop(options, {.max_step_tokens = 8});
  loop.submit(1, request(repeat(7, 40), 30));
  for (int i = 0; i < 5; ++i) loop.step();
  for (std::uint64_t id = 2; id <= 5; ++id) {
    loop.submit(id, request(repeat(static_cast<TokenId>(10 + id), 24), 1));
  }
  for (int i = 0; i < 20; ++i) loop.step();
  REQUIRE(loop.finish(1) == nullptr);
  loop.submit(9, request(prompt(9, 3, 3), 2));
  CHECK(loop.step() == "admit 9+0 | run 1@60x1+1* 9@0x7+2");
}

TEST_CASE("A later turn: finds the whole conversation, the generated answer included",
          "[scheduler]") {
  const bool windows = GENERATE(false, true);
  Loop loop(either_cache(windows));
  loop.submit(1, request(repeat(7, 10), 7));
  loop.run_until_empty(20);
  std::vector<TokenId> turn = loop.finish(1)->sequence.tokens;  // 17, of which 16 were computed
  turn.insert(turn.end(), 5, 9);
  loop.submit(2, request(turn, 2));
  CHECK(loop.step() == "admit 2+16 | run 2@16x6+2*");
  loop.run_until_empty(5);
  turn.resize(14);  // an edited turn
  turn.insert(turn.end(), 5, 4);
  loop.submit(3, request(turn, 2));
  CHECK(loop.step() == "admit 3+14 | run 3@14x5+2*");
}

}  // namespace kvasir::scheduler
