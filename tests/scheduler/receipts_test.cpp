// What a sequence reports of blocks and scores: over all the times that it ran, and for those that
// were refused, in bytes.
#include "tests/scheduler/step_fixture.h"
#include "tests/support/catch.h"

namespace kvasir::scheduler {
namespace {

using testing::Loop;
using testing::repeat;
using testing::request;

std::string refusal(Loop& loop, Request wanted) {
  loop.submit(1, std::move(wanted));
  loop.step();
  const Finish* finish = loop.finish(1);
  return finish == nullptr || !finish->error ? "" : finish->error->message;
}

}  // namespace

TEST_CASE("A receipt: has what was taken, given back, shared and held at most", "[scheduler]") {
  Loop loop(20);
  loop.submit(1, request(repeat(7, 10), 4));
  loop.run_until_empty(10);
  loop.submit(2, request(repeat(7, 10), 8));
  loop.run_until_empty(20);
  const kvcache::KvReceipt first = usage_of(loop.finish(1)->sequence, loop.now).kv;
  CHECK(first == kvcache::KvReceipt{4, 0, 4, 4});  // 13 tokens
  const kvcache::KvReceipt second = usage_of(loop.finish(2)->sequence, loop.now).kv;
  CHECK(second.peak_blocks == 5);  // 17 tokens
  // Two of the prompt, and the next one, which its answer filled with what the first had published.
  CHECK(second.shared_blocks == 3);
  CHECK(second.taken_blocks == second.returned_blocks);
}

TEST_CASE("A receipt: adds up over preemptions, and keeps the highest peak", "[scheduler]") {
  Loop loop(6);
  loop.submit(1, request(repeat(7, 8), 8));
  loop.submit(2, request(repeat(5, 8), 8));
  while (loop.state.totals.preemptions == 0) loop.step();
  const kvcache::KvReceipt before = loop.state.waiting[0].kv;
  CHECK(before == kvcache::KvReceipt{3, 0, 3, 3});
  loop.run_until_empty(30);
  const Usage usage = usage_of(loop.finish(2)->sequence, loop.now);
  REQUIRE(usage.preemptions == 1);
  CHECK(usage.kv.peak_blocks == 4);
  CHECK(usage.kv.taken_blocks >= 3 + 4);
  CHECK(usage.kv.returned_blocks == usage.kv.taken_blocks);
  CHECK(loop.kv.totals().taken == 4 + usage.kv.taken_blocks);
}

TEST_CASE("A receipt: of one that is cancelled in a second, shorter run has the first one's peak",
          "[scheduler]") {
  kvcache::KvCacheOptions options = testing::small_cache(6);
  options.prefix_cache_enabled = false;
  Loop loop(options);
  loop.submit(1, request(repeat(7, 8), 8));
  loop.submit(2, request(repeat(5, 8), 8));
  while (loop.state.totals.preemptions == 0) loop.step();
  loop.limits.max_step_tokens = 2;
  while (loop.state.find(SequenceId{2})->num_computed_tokens == 0) loop.step();
  REQUIRE(loop.kv.blocks_held(SequenceId{2}) == 1);
  const std::optional<Sequence> removed = remove(loop.state, loop.kv, SequenceId{2});
  REQUIRE(removed.has_value());
  CHECK(removed->kv == kvcache::KvReceipt{3, 0, 4, 4});
}

TEST_CASE("Attention scores: are counted once for each pass, in windows as far as they see",
          "[scheduler]") {
  Loop loop(testing::windowed_cache(400, 6, 16));
  loop.submit(1, request(repeat(7, 9), 3));  // 11 passes
  loop.run_until_empty(10);
  const std::uint64_t full = 11 * 12 / 2;
  const std::uint64_t windowed = 1 + 2 + 3 + 4 + 5 + 6 * 6;
  CHECK(usage_of(loop.finish(1)->sequence, loop.now).attention_scores == full + 5 * windowed);
  loop.submit(2, request(repeat(7, 9), 1));  // 8 cached, 1 pass
  loop.run_until_empty(10);
  CHECK(loop.finish(2)->sequence.cached_tokens == 8);
  CHECK(usage_of(loop.finish(2)->sequence, loop.now).attention_scores == 9 + 5 * 6);
}

TEST_CASE("A refusal: counts windows as they are held", "[scheduler]") {
  // Blocks of 128 bytes. 3 stripes of 6; a window of 4 with chunks of 4 holds 3 stripes at most,
  // so 4 stripes are 3 * 5 + 4.
  Loop fits(testing::windowed_cache(19, 4, 4));
  CHECK(refusal(fits, request(repeat(7, 9), 8)).empty());
  Loop loop(testing::windowed_cache(18, 4, 4));
  CHECK(refusal(loop, request(repeat(7, 9), 8)) ==
        "the KV cache of 9 prompt tokens and 8 generated ones needs 2432 bytes and the budget is "
        "2304 bytes; the longest prompt that fits with as many generated tokens has 5 tokens");
}

TEST_CASE("A refusal: of a prompt alone names what the prompt needs", "[scheduler]") {
  Loop loop(2);
  Request alone = request(repeat(7, 9), 0);
  alone.prompt_logprobs = 0;
  CHECK(refusal(loop, alone) ==
        "the KV cache of 9 prompt tokens and 0 generated ones needs 384 bytes and the budget is "
        "256 bytes; the longest prompt that fits with as many generated tokens has 8 tokens");
  Loop short_context(20, {.context_tokens = 8});
  CHECK(refusal(short_context, alone) == "the prompt has 9 tokens and does not fit a context of 8");
  Loop full_context(20, {.context_tokens = 9});
  CHECK(refusal(full_context, alone).empty());
  Loop no_answer(20, {.context_tokens = 9});
  CHECK(refusal(no_answer, request(repeat(7, 9), 3)) ==
        "the prompt has 9 tokens and leaves no room for an answer in a context of 9");
}

}  // namespace kvasir::scheduler
