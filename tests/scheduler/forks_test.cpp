// The choices of one prompt, step by step: what is computed once, what each holds of its own, and
// what becomes of it when one of them leaves.
#include "tests/scheduler/step_fixture.h"
#include "tests/support/catch.h"

#include <algorithm>

namespace kvasir::scheduler {
namespace {

using testing::Loop;
using testing::repeat;
using testing::request;

kvcache::KvCacheOptions cache_of(std::uint32_t num_blocks, bool prefix_cache) {
  kvcache::KvCacheOptions options = testing::small_cache(num_blocks);
  options.prefix_cache_enabled = prefix_cache;
  return options;
}

/// `n` choices with ids from 1; a prompt of `prompt_tokens` tokens.
void submit_group(Loop& loop, std::uint32_t n, std::size_t prompt_tokens,
                  std::uint32_t max_tokens) {
  Request wanted = request(repeat(7, prompt_tokens), max_tokens);
  wanted.fork_group = 1;
  for (std::uint32_t k = 0; k < n; ++k) {
    wanted.sampling.choice_index = k;
    loop.submit(k + 1, wanted);
  }
}

bool ended_whole(const Loop& loop, std::uint32_t n, std::uint32_t max_tokens) {
  for (std::uint64_t id = 1; id <= n; ++id) {
    const Finish* finish = loop.finish(id);
    if (finish == nullptr || finish->sequence.num_generated() != max_tokens) return false;
  }
  return loop.kv.num_free_blocks() == loop.kv.num_blocks();
}

}  // namespace

TEST_CASE("Forks: a prompt is computed once and its blocks are held once", "[scheduler]") {
  const bool prefix_cache = GENERATE(true, false);
  Loop loop(cache_of(60, prefix_cache));
  submit_group(loop, 8, 38, 3);
  CHECK(loop.step() == "admit 1+0 | run 1@0x38+10*");
  CHECK(loop.begin() ==
        "admit 2+37<1 3+37<1 4+37<1 5+37<1 6+37<1 7+37<1 8+37<1 | run 1@38x1* 2@37x1+1* 3@37x1+1* "
        "4@37x1+1* 5@37x1+1* 6@37x1+1* 7@37x1+1* 8@37x1+1*");
  // Ten blocks of the leader, and of each fork the one that it writes.
  CHECK(loop.kv.num_live_blocks() == 10 + 7);
  const std::vector<BlockCopy> copies = block_copies(loop.last_plan, loop.kv);
  REQUIRE(copies.size() == 7);
  CHECK(std::ranges::all_of(copies, [&](const BlockCopy& copy) {
    return copy.source == loop.kv.block_table(SequenceId{1})[9] && copy.num_tokens == 1;
  }));
  loop.end();
  loop.run_until_empty(10);
  CHECK(ended_whole(loop, 8, 3));
  CHECK(loop.state.totals.computed_tokens == 38 + 8 * 2 + 7);
  CHECK(loop.state.totals.prefix_hit_tokens == 0);
  CHECK(loop.state.totals.prefix_query_tokens == 38);
  CHECK(loop.finish(1)->sequence.cached_tokens == 0);
  CHECK(loop.finish(8)->sequence.cached_tokens == 37);
}

TEST_CASE("Forks: of a prompt that ends at a block's border share all but its last block",
          "[scheduler]") {
  Loop loop(cache_of(60, false));
  submit_group(loop, 2, 8, 3);
  loop.step();
  CHECK(loop.begin() == "admit 2+7<1 | run 1@8x1+1* 2@7x1+1*");
  CHECK(loop.kv.num_live_blocks() == 4);
  CHECK(block_copies(loop.last_plan, loop.kv).at(0).num_tokens == 3);
  loop.end();
  loop.run_until_empty(10);
  CHECK(ended_whole(loop, 2, 3));
}

TEST_CASE("Forks: of a prompt whose last token stands alone in a block copy nothing",
          "[scheduler]") {
  Loop loop(cache_of(60, false));
  submit_group(loop, 2, 9, 3);
  loop.step();
  CHECK(loop.begin() == "admit 2+8<1 | run 1@9x1* 2@8x1+1*");
  CHECK(block_copies(loop.last_plan, loop.kv).empty());
  CHECK(loop.kv.num_live_blocks() == 4);
  loop.end();
}

TEST_CASE("Forks: when the leader goes before its prompt is computed, the next one leads",
          "[scheduler]") {
  Loop loop(cache_of(60, false), {.max_step_tokens = 4});
  submit_group(loop, 3, 10, 3);
  CHECK(loop.step() == "admit 1+0 | run 1@0x4+1");
  CHECK(loop.step() == "run 1@4x4+1");
  CHECK(remove(loop.state, loop.kv, SequenceId{1}).has_value());
  CHECK(loop.step() == "admit 2+0 | run 2@0x4+1");
  CHECK(loop.step() == "run 2@4x4+1");
  CHECK(loop.step() == "run 2@8x2+1*");
  CHECK(loop.step() == "admit 3+9<2 | run 2@10x1* 3@9x1+1*");
}

TEST_CASE("Forks: outlive their leader and are forked from in its place", "[scheduler]") {
  Loop loop(cache_of(60, false), {.max_sequences = 2});
  submit_group(loop, 3, 10, 6);
  loop.step();
  CHECK(loop.step() == "admit 2+9<1 | run 1@10x1* 2@9x1+1*");
  CHECK(remove(loop.state, loop.kv, SequenceId{1}).has_value());
  CHECK(loop.kv.num_live_blocks() == 3);
  CHECK(loop.step() == "admit 3+9<2 | run 2@10x1* 3@9x1+1*");
  loop.run_until_empty(10);
  CHECK(loop.finish(3)->sequence.num_generated() == 6);
  CHECK(loop.state.totals.computed_tokens == 10 + 1 + 1 + 5 + 5 + 1);
}

TEST_CASE("Forks: when nobody is left who has the prompt, the prefix cache has what it has",
          "[scheduler]") {
  const bool prefix_cache = GENERATE(true, false);
  Loop loop(cache_of(60, prefix_cache), {.max_sequences = 1});
  submit_group(loop, 2, 10, 2);
  loop.step();
  loop.step();
  REQUIRE(loop.finish(1) != nullptr);
  CHECK(loop.step() == (prefix_cache ? "admit 2+9 | run 2@9x1+1*" : "admit 2+0 | run 2@0x10+3*"));
}

TEST_CASE("Forks: one that was preempted forks again, and computes its own tokens again",
          "[scheduler]") {
  Loop loop(cache_of(7, false));
  submit_group(loop, 3, 6, 9);
  loop.step();
  // Two blocks of the leader, one each of the forks; then all three grow every four tokens.
  CHECK(loop.step() == "admit 2+5<1 3+5<1 | run 1@6x1* 2@5x1+1* 3@5x1+1*");
  std::vector<std::string> texts;
  while (!loop.state.empty() && texts.size() < 60) {
    texts.push_back(loop.step());
    for (const Admission& admission : loop.last_plan.admit) {
      CAPTURE(texts.back());
      CHECK(admission.fork_of.has_value());
      CHECK(admission.cached_tokens >= 6);
    }
  }
  CHECK(ended_whole(loop, 3, 9));
  CHECK(loop.state.totals.preemptions > 0);
}

TEST_CASE("Forks: a group that shares nothing of its worst case still ends in the least budget",
          "[scheduler]") {
  Loop loop(cache_of(4, false), {.preemptions_before_reserve = 1});
  submit_group(loop, 5, 6, 11);  // 16 slots: each alone needs every block
  CHECK(loop.run_until_empty(400) < 400);
  CHECK(ended_whole(loop, 5, 11));
}

TEST_CASE("Forks: the one that scores the prompt computes all of it, the others none of it",
          "[scheduler]") {
  Loop loop(60, {.max_step_tokens = 12});
  loop.submit(9, request(repeat(7, 10), 1));
  loop.step();  // leaves two blocks of the prompt in the cache
  Request wanted = request(repeat(7, 10), 3);
  wanted.fork_group = 1;
  wanted.prompt_logprobs = 0;
  loop.submit(1, wanted);
  wanted.prompt_logprobs.reset();
  loop.submit(2, wanted);
  // The other one has it from the cache and waits for nobody.
  CHECK(loop.step() == "admit 1+0 2+9 | run 1@0x10+3*0 2@9x1+1*");
  loop.run_until_empty(10);
  CHECK(loop.finish(1)->sequence.cached_tokens == 0);
  CHECK(loop.finish(1)->sequence.tokens == loop.finish(2)->sequence.tokens);
}

TEST_CASE("Forks: nobody waits for one that scores what the cache has", "[scheduler]") {
  Loop loop(200, {.max_step_tokens = 12});
  loop.submit(1, request(repeat(7, 30), 1));
  loop.run_until_empty(10);
  Request scores = request(repeat(7, 31), 1);
  scores.prompt_logprobs = 0;
  loop.submit(2, scores);
  loop.submit(100, request(repeat(7, 31), 2));
  // These follow each other for ever, and one of them is always just computing the prompt.
  for (std::uint64_t id = 3; id < 9; ++id) loop.submit(id, scores);
  CHECK(loop.step() == "admit 2+0 | run 2@0x12+3*0");
  CHECK(loop.step() == "run 2@12x12+3*0");
  CHECK(loop.step().starts_with("admit 100+30 3+0 | run 2@24x7"));
}

TEST_CASE("Forks: with a window, choices of a prompt of any length are forks of the first",
          "[scheduler]") {
  const std::size_t prompt = GENERATE(range(8, 24));
  kvcache::KvCacheOptions options = testing::windowed_cache(400, 6, 16);
  options.prefix_cache_enabled = false;
  Loop loop(options, {.max_step_tokens = 64});
  submit_group(loop, 3, static_cast<std::uint32_t>(prompt), 3);
  loop.run_until_empty(20);
  CAPTURE(prompt);
  CHECK(loop.state.totals.computed_tokens == prompt + 2 + 2 * 3);
}

TEST_CASE("Forks: a group of other prompts shares only what they begin with alike", "[scheduler]") {
  Loop loop(cache_of(60, false));
  Request wanted = request(repeat(7, 10), 6);
  wanted.fork_group = 1;
  loop.submit(1, wanted);
  wanted.prompt_tokens[4] = 8;
  loop.submit(2, wanted);
  CHECK(loop.step() == "admit 1+0 | run 1@0x10+3*");
  CHECK(loop.step() == "admit 2+4<1 | run 1@10x1* 2@4x6+2*");
}

}  // namespace kvasir::scheduler
