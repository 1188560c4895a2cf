// Hits that end within a stripe: what is kept when a sequence leaves, from what it is copied, and
// that the source is never written. Blocks have four tokens.
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

KvCacheOptions plain(std::uint32_t num_blocks) { return cache_options({layers(1, 0)}, num_blocks); }

/// Runs and leaves.
void come_and_go(KvCacheManager& kv, const Text& text) {
  const PrefixMatch match = kv.match_prefix(text.hashed());
  run(kv, SequenceId{50}, text, match.tokens, 512);
  (void)kv.evict(SequenceId{50}, text.hashed());
  kv.check_integrity();
}

}  // namespace

TEST_CASE("Partial stripes: the next turn of a chat finds every token of the last", "[kvcache]") {
  KvCacheManager kv(plain(10));
  const Text turn(kv, count_from(0, 11));
  come_and_go(kv, turn);
  CHECK(kv.num_cached_blocks() == 3);
  const Text next(kv, joined(turn.tokens, {50, 51}));
  CHECK(kv.match_prefix(next.hashed()) == PrefixMatch{11, 2, 0, 1});
  CHECK(kv.match_whole_stripes(next.hashed()) == PrefixMatch{8, 2, 0, 0});
  CHECK(kv.match_prefix(turn.hashed()) == PrefixMatch{10, 2, 0, 1});  // never the whole list

  kv.admit(kFirst, next.hashed(), 11);
  CHECK(kv.num_live_blocks() == 3);
  CHECK(kv.blocks_held(kFirst) == 2);
  CHECK(kv.blocks_freed_by_evicting(kFirst) == 3);  // the pinned one as well
  kv.grow(kFirst, 2);
  const std::vector<BlockCopy> copies = kv.copies(kFirst);
  REQUIRE(copies.size() == 1);
  CHECK(copies[0].destination == kv.block_table(kFirst)[2]);
  CHECK(copies[0].num_tokens == 3);
  CHECK(kv.is_published(copies[0].source));
  kv.check_may_write(kFirst, 2);
  kv.check_integrity();
  kv.commit(kFirst, next.hashed(), 13);
  CHECK(kv.copies(kFirst).empty());
  kv.check_integrity();
  CHECK(kv.num_live_blocks() == 4);
  // The full stripe covers the partly filled one.
  CHECK(kv.num_cached_blocks() == 0);
}

TEST_CASE("Partial stripes: the first tokens of a full one are copied too", "[kvcache]") {
  KvCacheManager kv(plain(10));
  come_and_go(kv, Text(kv, count_from(0, 12)));
  const Text edited(kv, joined(count_from(0, 6), {90, 91, 92}));
  CHECK(kv.match_prefix(edited.hashed()) == PrefixMatch{6, 1, 0, 1});
  run(kv, kFirst, Text(kv, count_from(0, 12)));
  CHECK(kv.match_prefix(edited.hashed()) == PrefixMatch{6, 1, 1, 0});  // they are held
  CHECK(run(kv, kSecond, edited).tokens == 6);
  CHECK(kv.block_table(kSecond)[1] != kv.block_table(kFirst)[1]);
}

TEST_CASE("Partial stripes: other salts, and lists that differ before, copy nothing", "[kvcache]") {
  KvCacheManager kv(plain(10));
  come_and_go(kv, Text(kv, count_from(0, 11), 1));
  const auto tokens_of = [&](std::vector<TokenId> tokens, std::uint64_t salt) {
    return kv.match_prefix(Text(kv, std::move(tokens), salt).hashed()).tokens;
  };
  CHECK(tokens_of(count_from(0, 12), 1) == 11);
  CHECK(tokens_of(count_from(0, 12), 0) == 0);
  CHECK(tokens_of(count_from(0, 12), 2) == 0);
  CHECK(tokens_of({9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 1) == 0);
  CHECK(tokens_of({8, 9, 10, 11}, 1) == 0);  // the tokens of the leaf, after nothing
  CHECK(tokens_of({0, 1, 9}, 1) == 2);
}

TEST_CASE("Partial stripes: several requests copy from one block at a time", "[kvcache]") {
  KvCacheManager kv(plain(10));
  const Text turn(kv, count_from(0, 7));
  come_and_go(kv, turn);
  const Text left(kv, joined(turn.tokens, {50}));
  const Text right(kv, joined(turn.tokens, {60, 61}));
  kv.admit(kFirst, left.hashed(), 7);
  CHECK(kv.match_prefix(right.hashed()) == PrefixMatch{7, 1, 1, 0});  // pinned already
  kv.admit(kSecond, right.hashed(), 7);
  kv.grow(kFirst, 1);
  kv.grow(kSecond, 2);
  CHECK(kv.references(kv.copies(kFirst)[0].source) == 2);
  kv.check_integrity();
  kv.commit(kFirst, left.hashed(), 8);
  kv.check_integrity();
  CHECK(kv.references(kv.copies(kSecond)[0].source) == 1);
  (void)kv.evict(kSecond, right.hashed());  // before its step was computed
  kv.check_integrity();
  CHECK(kv.num_live_blocks() == 2);
  // What was never copied is not kept as if it had been.
  CHECK(kv.match_prefix(Text(kv, joined(right.tokens, {62})).hashed()).tokens == 7);
}

TEST_CASE("Partial stripes: what a fork never copied is not kept as if it had been", "[kvcache]") {
  KvCacheManager kv(plain(10));
  const Text text(kv, count_from(0, 7));
  run(kv, kFirst, text);
  kv.fork(kSecond, kFirst, 6);
  kv.grow(kSecond, 1);
  (void)kv.evict(kSecond, text.hashed());  // its step was not computed
  CHECK(kv.num_cached_blocks() == 0);
  CHECK(kv.match_prefix(text.hashed()).tokens == 4);
  kv.check_integrity();
}

TEST_CASE("Partial stripes: of two leaves the one that covers the other is kept", "[kvcache]") {
  KvCacheManager kv(plain(10));
  come_and_go(kv, Text(kv, count_from(0, 6)));
  CHECK(kv.num_cached_blocks() == 2);
  come_and_go(kv, Text(kv, count_from(0, 7)));
  CHECK(kv.num_cached_blocks() == 2);
  come_and_go(kv, Text(kv, count_from(0, 6)));
  CHECK(kv.num_cached_blocks() == 2);
  come_and_go(kv, Text(kv, joined(count_from(0, 5), {9})));
  CHECK(kv.num_cached_blocks() == 3);  // neither covers the other
  CHECK(kv.match_prefix(Text(kv, count_from(0, 9)).hashed()).tokens == 7);
  CHECK(kv.match_prefix(Text(kv, joined(count_from(0, 5), {9, 9})).hashed()).tokens == 6);
}

TEST_CASE("Partial stripes: a source that is pinned stays when a longer one comes", "[kvcache]") {
  KvCacheManager kv(plain(12));
  come_and_go(kv, Text(kv, count_from(0, 6)));
  const Text waiting(kv, joined(count_from(0, 6), {50}));
  const Text longer(kv, count_from(0, 7));
  run(kv, kFirst, longer, 4, 512);
  kv.admit(kSecond, waiting.hashed(), 6);
  (void)kv.evict(kFirst, longer.hashed());
  kv.check_integrity();
  kv.grow(kSecond, 1);
  CHECK(kv.references(kv.copies(kSecond)[0].source) == 1);
  CHECK(kv.is_published(kv.copies(kSecond)[0].source));
  kv.commit(kSecond, waiting.hashed(), 7);
  kv.check_integrity();
}

TEST_CASE("Partial stripes: copies go on where a leaf's tokens end within many siblings",
          "[kvcache]") {
  KvCacheManager kv(plain(300));
  for (TokenId first = 0; first < 200; ++first) {
    come_and_go(kv, Text(kv, {first, first + 1, first + 2}));
  }
  for (TokenId first = 0; first < 200; ++first) {
    CHECK(kv.match_prefix(Text(kv, {first, first + 1, first + 2, 7}).hashed()).tokens == 3);
    CHECK(kv.match_prefix(Text(kv, {first, first + 1, 500}).hashed()).tokens == 2);
  }
}

TEST_CASE("Partial stripes: with a cut chain nothing is kept past the cut", "[kvcache]") {
  KvCacheOptions options = plain(10);
  options.hash = [](const BlockHash&, std::span<const TokenId>) { return BlockHash{1, 1}; };
  KvCacheManager kv(options);
  come_and_go(kv, Text(kv, count_from(0, 11)));
  CHECK(kv.num_cached_blocks() == 1);
  come_and_go(kv, Text(kv, joined(count_from(0, 4), {60})));
  CHECK(kv.match_prefix(Text(kv, joined(count_from(0, 4), {60, 61})).hashed()).tokens == 5);
}

TEST_CASE("Partial stripes: what is copied must be there", "[kvcache]") {
  KvCacheManager kv(plain(10));
  come_and_go(kv, Text(kv, count_from(0, 6)));
  const Text text(kv, count_from(0, 9));
  CHECK(testing::aborts([&] { kv.admit(kThird, text.hashed(), 7); }));
  CHECK(testing::aborts([&] { kv.admit(kThird, Text(kv, count_from(0, 6)).hashed(), 6); }));
  CHECK_FALSE(testing::aborts([&] { kv.admit(kThird, text.hashed(), 6); }));
  CHECK_FALSE(testing::aborts([&] { kv.admit(kThird, text.hashed(), 4); }));
}

TEST_CASE("Receipts: taken less returned is live, and the peak says what was shared", "[kvcache]") {
  KvCacheManager kv(plain(12));
  const Text prompt(kv, count_from(0, 11));
  run(kv, kFirst, prompt);
  CHECK(kv.receipt(kFirst) == KvReceipt{3, 0, 3, 0});
  const Text other(kv, joined(count_from(0, 8), {50, 51, 52, 53, 54}));
  run(kv, kSecond, other);
  CHECK(kv.receipt(kSecond) == KvReceipt{4, 2, 2, 0});
  CHECK(kv.totals().taken == 5);
  CHECK(kv.evict(kFirst, prompt.hashed()) == KvReceipt{3, 0, 3, 1});
  CHECK(kv.evict(kSecond, other.hashed()) == KvReceipt{4, 2, 2, 4});  // the last to hold them
  CHECK(kv.totals().returned == 5);
  // From the cache: two stripes are pinned, a third for the copy, which is given back after it.
  const Text again(kv, joined(count_from(0, 11), {70}));
  run(kv, kThird, again);
  CHECK(kv.receipt(kThird) == KvReceipt{4, 3, 4, 1});
  CHECK(kv.totals().reclaimed == 1);  // the partly filled stripe, covered by the full one now
}

}  // namespace kvasir::kvcache
