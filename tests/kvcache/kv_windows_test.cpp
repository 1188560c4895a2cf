// Layer groups with windows: what a table holds of each, what it gives back, and where hits and
// forks may end. Blocks have four tokens; every group has one layer unless said.
#include "tests/kvcache/kv_text.h"
#include "tests/support/aborts.h"
#include "tests/support/catch.h"

#include <vector>

namespace kvasir::kvcache {
namespace {

using namespace testing_kv;

constexpr SequenceId kFirst{1};
constexpr SequenceId kSecond{2};
constexpr SequenceId kThird{3};

/// A group without a window and one that sees six tokens.
KvCacheOptions mixed(std::uint32_t num_blocks) {
  return cache_options({layers(1, 0), layers(1, 6)}, num_blocks, 8);
}

std::uint32_t held(const KvCacheManager& kv, SequenceId id, std::size_t group) {
  std::uint32_t count = 0;
  for (const BlockId block : kv.block_table(id, group)) count += block == kNoBlock ? 0 : 1;
  return count;
}

void evict(KvCacheManager& kv, SequenceId id) { (void)kv.evict(id, {{}, HashChain()}); }

/// Takes every free block and gives it back: nothing is cached any more.
void flush(KvCacheManager& kv) {
  const Text none(kv, {});
  kv.admit(SequenceId{99}, none.hashed(), 0);
  kv.grow(SequenceId{99}, kv.num_free_blocks() / kv.geometry().blocks_per_stripes());
  evict(kv, SequenceId{99});
}

/// So many blocks of other content have to be found.
void press(KvCacheManager& kv, std::uint32_t num_stripes) {
  const Text none(kv, {});
  kv.admit(SequenceId{99}, none.hashed(), 0);
  kv.grow(SequenceId{99}, num_stripes);
  evict(kv, SequenceId{99});
  kv.check_integrity();
}

}  // namespace

TEST_CASE("Windows: what no later query sees is given back, and no more", "[kvcache]") {
  KvCacheOptions options = mixed(40);
  options.prefix_cache_enabled = GENERATE(true, false);
  KvCacheManager kv(options);
  const Text text(kv, count_from(0, 30));
  kv.admit(kFirst, text.hashed(), 0);
  for (std::uint32_t done = 1; done <= 30; ++done) {
    kv.grow(kFirst, stripes_for(kv, done) - kv.num_stripes(kFirst));
    kv.commit(kFirst, text.hashed(), done);
    kv.check_integrity();
    CAPTURE(done);
    // The last query, which a fork computes again, saw the five positions before it.
    const std::uint32_t first = done < 7 ? 0 : (done - 6) / kSlots;
    CHECK(held(kv, kFirst, 0) == stripes_for(kv, done));
    CHECK(held(kv, kFirst, 1) == stripes_for(kv, done) - first);
    CHECK(kv.num_stripes(kFirst) == stripes_for(kv, done));
    CHECK(kv.blocks_held(kFirst) == held(kv, kFirst, 0) + held(kv, kFirst, 1));
    CHECK(kv.num_live_blocks() == kv.blocks_held(kFirst));
    CHECK(kv.blocks_freed_by_evicting(kFirst) == kv.blocks_held(kFirst));
    CHECK(kv.block_table(kFirst, 1).size() == kv.num_stripes(kFirst));
  }
  CHECK(kv.totals().window_returned == (30 - 5) / kSlots);
  CHECK(kv.receipt(kFirst).returned_blocks == kv.totals().window_returned);
  evict(kv, kFirst);
  CHECK(kv.num_free_blocks() == 40);
  CHECK(kv.num_cached_blocks() == (options.prefix_cache_enabled ? 14 : 0));
}

TEST_CASE("Windows: a stripe of a group with more layers is several blocks, in order",
          "[kvcache]") {
  KvCacheManager kv(cache_options({layers(5, 6), layers(1, 0)}, 60, 8));
  const Text text(kv, count_from(0, 22));
  run(kv, kFirst, text, 0, 5);
  CHECK(kv.num_stripes(kFirst) == 6);
  CHECK(held(kv, kFirst, 0) == 10);  // the query at 22 sees 17 .. 21: two stripes
  CHECK(held(kv, kFirst, 1) == 6);
  CHECK(kv.block_table(kFirst, 0).size() == 30);
  CHECK(kv.block_table(kFirst, 0)[19] == kNoBlock);
  CHECK(kv.block_table(kFirst, 0)[20] != kNoBlock);
  CHECK(kv.totals().window_returned == 20);
}

TEST_CASE("Windows: a hit needs all of a group without one, and of others what is seen",
          "[kvcache]") {
  KvCacheManager kv(mixed(40));
  run(kv, kFirst, Text(kv, count_from(0, 26)), 0, 8);
  const auto tokens_of = [&](std::uint32_t length) {
    return kv.match_prefix(Text(kv, count_from(0, length)).hashed()).tokens;
  };
  evict(kv, kFirst);  // nothing is kept of the partly filled stripe: it was given no tokens
  CHECK(tokens_of(40) == 24);
  CHECK(tokens_of(20) == 19);  // copied out of the full stripe
  CHECK(tokens_of(11) == 10);
  // The windowed stripes that were passed while it ran go first: 14 empty ones and cached ones.
  const std::uint32_t empty = kv.num_free_blocks() - kv.num_cached_blocks();
  press(kv, (empty + 4) / 2);  // stripes 0 .. 3
  CHECK(tokens_of(40) == 24);  // sees 19 .. 23
  CHECK(tokens_of(24) == 23);  // sees 18 .. 22
  CHECK(tokens_of(22) == 21);  // sees 16 .. 20
  CHECK(tokens_of(21) == 0);   // would see 15
  const Text text(kv, count_from(0, 30));
  CHECK(run(kv, kSecond, text).tokens == 24);
  CHECK(held(kv, kSecond, 0) == 8);
}

TEST_CASE("Windows: without a copy a hit may have to end earlier", "[kvcache]") {
  KvCacheManager kv(mixed(40));
  const Text text(kv, count_from(0, 26));
  run(kv, kFirst, text, 0, 8);
  evict(kv, kFirst);
  press(kv, (kv.num_free_blocks() - kv.num_cached_blocks() + 4) / 2);
  const Text same(kv, count_from(0, 24));
  CHECK(kv.match_prefix(same.hashed()).tokens == 23);
  CHECK(kv.match_prefix(same.hashed()).stripes == 5);
  CHECK(kv.match_whole_stripes(same.hashed()) == PrefixMatch{0, 0, 0, 0});  // 20 would see 15
  CHECK(testing::aborts([&] { kv.admit(kSecond, same.hashed(), 20); }));
  CHECK_FALSE(testing::aborts([&] { kv.admit(kSecond, same.hashed(), 23); }));
}

TEST_CASE("Windows: what was reclaimed is filled in by who computes it again", "[kvcache]") {
  KvCacheManager kv(mixed(40));
  const Text text(kv, count_from(0, 26));
  run(kv, kFirst, text, 0, 8);
  evict(kv, kFirst);
  press(kv, (kv.num_free_blocks() - kv.num_cached_blocks() + 4) / 2);
  const Text start(kv, count_from(0, 12));
  CHECK(kv.match_prefix(start.hashed()).tokens == 0);
  run(kv, kSecond, start, 0, 8);
  CHECK(kv.num_cached_blocks() == 6);  // of both groups past the 12 tokens, and what it passed
  CHECK(kv.match_prefix(start.hashed()).tokens == 11);
  CHECK(kv.block_table(kSecond, 0)[0] != kNoBlock);
  CHECK(kv.is_published(kv.block_table(kSecond, 1)[2]));
}

TEST_CASE("Windows: receipts of forks are exact, whoever outlives the other", "[kvcache]") {
  const bool source_first = GENERATE(true, false);
  KvCacheOptions options = mixed(40);
  options.prefix_cache_enabled = GENERATE(true, false);
  KvCacheManager kv(options);
  const Text text(kv, count_from(0, 26));
  run(kv, kFirst, text, 0, 8);
  const KvReceipt source = kv.receipt(kFirst);
  // Seven stripes without a window; of the windowed ones the last three at once, in a step of 8.
  CHECK(source == KvReceipt{10, 0, 14, source.returned_blocks});
  CHECK(source.taken_blocks - source.returned_blocks == kv.num_live_blocks());
  kv.fork(kSecond, kFirst, 25);
  kv.grow(kSecond, 1);
  kv.commit(kSecond, text.hashed(), 26);
  // Six full stripes and one of the window are the source's; one stripe of each is its own.
  CHECK(kv.receipt(kSecond) == KvReceipt{9, 7, 2, 0});
  CHECK(kv.num_live_blocks() == source.taken_blocks - source.returned_blocks + 2);
  const SequenceId first_to_go = source_first ? kFirst : kSecond;
  const SequenceId last_to_go = source_first ? kSecond : kFirst;
  const std::uint64_t before = kv.receipt(first_to_go).returned_blocks;
  CHECK(kv.evict(first_to_go, text.hashed()).returned_blocks == before + 2);  // what it had alone
  const std::uint64_t returned = kv.receipt(last_to_go).returned_blocks;
  CHECK(kv.evict(last_to_go, text.hashed()).returned_blocks == returned + 9);
  CHECK(kv.num_live_blocks() == 0);
  CHECK(kv.totals().taken == kv.totals().returned);
}

TEST_CASE("Windows: a fork needs what its first query sees, and holds no more", "[kvcache]") {
  KvCacheOptions options = mixed(40);
  options.prefix_cache_enabled = GENERATE(true, false);
  KvCacheManager kv(options);
  const Text text(kv, count_from(0, 26));
  run(kv, kFirst, text, 0, 8);
  CHECK(kv.can_fork(kFirst, 26));
  CHECK(kv.can_fork(kFirst, 25));  // sees 20 .. 24
  CHECK_FALSE(kv.can_fork(kFirst, 24));
  CHECK_FALSE(kv.can_fork(kFirst, 27));
  CHECK(testing::aborts([&] { kv.fork(kSecond, kFirst, 24); }));
  kv.fork(kSecond, kFirst, 25);
  kv.grow(kSecond, 1);
  CHECK(held(kv, kSecond, 0) == 7);
  CHECK(held(kv, kSecond, 1) == 2);
  CHECK(kv.shared_window_blocks() == 1);
  const std::vector<BlockCopy> copies = kv.copies(kSecond);
  REQUIRE(copies.size() == 2);
  CHECK(copies[0] == BlockCopy{kv.block_table(kFirst, 0)[6], kv.block_table(kSecond, 0)[6], 1});
  CHECK(copies[1] == BlockCopy{kv.block_table(kFirst, 1)[6], kv.block_table(kSecond, 1)[6], 1});
  kv.check_may_write(kSecond, 3);
  kv.commit(kSecond, text.hashed(), 26);
  kv.check_integrity();
  // The fork outlives its source, whose blocks stay as long as the fork sees them.
  CHECK(kv.blocks_freed_by_evicting(kFirst) == 2);
  evict(kv, kFirst);
  CHECK(kv.shared_window_blocks() == 0);
  CHECK(kv.num_live_blocks() == 9);
  evict(kv, kSecond);
  CHECK(kv.num_free_blocks() == 40);
}

TEST_CASE("Windows: a block that two hold is given back by the second that passes it",
          "[kvcache]") {
  KvCacheManager kv(mixed(40));
  Text one(kv, count_from(0, 10));
  run(kv, kFirst, one, 0, 8);
  Text two(kv, joined(count_from(0, 10), {7}));
  CHECK(run(kv, kSecond, two).tokens == 8);
  CHECK(kv.shared_window_blocks() == 1);  // stripe 1: both see 6 and 7
  for (TokenId i = 0; i < 8; ++i) one.append(50 + i);
  kv.grow(kFirst, 2);
  const std::uint64_t returned = kv.totals().returned;
  kv.commit(kFirst, one.hashed(), 18);
  CHECK(kv.totals().returned == returned + 1);  // stripe 2, its own
  CHECK(kv.shared_window_blocks() == 0);
  for (TokenId i = 0; i < 7; ++i) two.append(80 + i);
  kv.grow(kSecond, 2);
  kv.commit(kSecond, two.hashed(), 18);
  CHECK(kv.totals().returned == returned + 3);
  kv.check_integrity();
}

TEST_CASE("Windows: truncating cannot go behind what is held", "[kvcache]") {
  KvCacheManager kv(mixed(40));
  const Text text(kv, count_from(0, 26));
  run(kv, kFirst, text, 0, 8);
  kv.grow(kFirst, 2);
  kv.truncate(kFirst, 28);
  CHECK(kv.num_stripes(kFirst) == 7);
  kv.truncate(kFirst, 25);
  CHECK(testing::aborts([&] { kv.truncate(kFirst, 24); }));
  kv.check_integrity();
}

TEST_CASE("Windows: with nothing but windows a cached end is found without its beginning",
          "[kvcache]") {
  KvCacheManager kv(cache_options({layers(1, 6)}, 12, 8));
  const Text text(kv, count_from(0, 100));
  run(kv, kFirst, text, 0, 8);
  CHECK(kv.blocks_held(kFirst) == 2);  // sees 95 .. 99
  evict(kv, kFirst);
  CHECK(kv.num_cached_blocks() <= 12);
  CHECK(kv.match_prefix(Text(kv, count_from(0, 120)).hashed()).tokens == 100);
  CHECK(kv.match_prefix(Text(kv, count_from(1, 120)).hashed()).tokens == 0);
  CHECK(run(kv, kSecond, Text(kv, count_from(0, 120))).tokens == 100);
  CHECK(kv.receipt(kSecond).peak_blocks <= kv.geometry().blocks_for(120));
  evict(kv, kSecond);
  flush(kv);
  CHECK(kv.num_cached_blocks() == 0);
  CHECK(kv.match_prefix(Text(kv, count_from(0, 120)).hashed()).tokens == 0);
  kv.check_integrity();
}

TEST_CASE("Windows: nodes without blocks are bounded", "[kvcache]") {
  KvCacheManager kv(cache_options({layers(1, 6)}, 4, 4));
  const std::uint32_t most_nodes = 4 * kMostNodesPerBlock;
  const Text text(kv, count_from(0, 2 * most_nodes * kSlots));
  run(kv, kFirst, text, 0, 4);  // check_integrity() counts them
  CHECK_FALSE(kv.is_published(kv.block_table(kFirst).back()));
  evict(kv, kFirst);
  // What is new takes the place of what is cached.
  const Text other(kv, count_from(7, 40));
  run(kv, kSecond, other, 0, 4);
  CHECK(kv.is_published(kv.block_table(kSecond).back()));
}

TEST_CASE("Windows: a window of one token needs nothing before it", "[kvcache]") {
  KvCacheManager kv(cache_options({layers(1, 1)}, 6, 4));
  const Text text(kv, count_from(0, 23));
  run(kv, kFirst, text, 0, 4);
  CHECK(kv.blocks_held(kFirst) == 1);
  run(kv, kSecond, Text(kv, count_from(0, 9)), 0, 4);
  CHECK(kv.can_fork(kFirst, 23));
  evict(kv, kFirst);
  evict(kv, kSecond);
  kv.check_integrity();
  CHECK(run(kv, kThird, Text(kv, count_from(0, 30))).tokens >= 20);
}

}  // namespace kvasir::kvcache
