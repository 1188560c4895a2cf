// Block tables, counts and sharing, with blocks of four tokens. What happens under load is
// tests/sim's.
#include "kvcache/kv_cache_manager.h"

#include "tests/support/aborts.h"
#include "tests/support/catch.h"

#include <vector>

namespace kvasir::kvcache {
namespace {

constexpr SequenceId kFirst{1};
constexpr SequenceId kSecond{2};
constexpr SequenceId kThird{3};

BlockHash constant_hash(const BlockHash&, std::span<const TokenId>) { return {1, 1}; }

KvCacheOptions options(std::uint32_t num_blocks) {
  KvCacheOptions options;
  options.geometry.groups = {
      {.num_layers = 1, .num_kv_heads = 1, .head_dim = 8, .window_tokens = 0}};
  options.geometry.block_tokens = 4;
  options.num_blocks = num_blocks;
  return options;
}

/// A token list with its chain, as a sequence keeps them.
struct Text {
  std::vector<TokenId> tokens;
  HashChain chain;
  Text(const KvCacheManager& kv, std::vector<TokenId> list, std::uint64_t salt = 0)
      : tokens(std::move(list)), chain(kv.new_hash_chain(salt)) {
    chain.extend(tokens);
  }
  [[nodiscard]] HashedTokens hashed() const { return {tokens, chain}; }
};

std::vector<TokenId> count_to(TokenId end) {
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < end; ++token) tokens.push_back(token);
  return tokens;
}

/// Admits with what matches, computes everything, returns the match.
void evict(KvCacheManager& kv, SequenceId id) { (void)kv.evict(id, {{}, HashChain()}); }

PrefixMatch compute(KvCacheManager& kv, SequenceId id, const Text& text) {
  const PrefixMatch match = kv.match_prefix(text.hashed());
  kv.admit(id, text.hashed(), match.tokens);
  kv.grow(id,
          static_cast<std::uint32_t>(kv.geometry().blocks_for(text.tokens.size())) - match.stripes);
  kv.commit(id, text.hashed(), static_cast<std::uint32_t>(text.tokens.size()));
  kv.check_integrity();
  return match;
}

}  // namespace

TEST_CASE("KvCacheManager: an evicted sequence gives all its blocks back", "[kvcache]") {
  KvCacheManager kv(options(5));
  compute(kv, kFirst, Text(kv, count_to(10)));
  CHECK(kv.blocks_held(kFirst) == 3);
  CHECK(kv.num_free_blocks() == 2);
  CHECK(kv.num_live_blocks() == 3);
  CHECK(kv.blocks_freed_by_evicting(kFirst) == 3);
  evict(kv, kFirst);
  CHECK(kv.num_free_blocks() == 5);
  CHECK(kv.num_cached_blocks() == 2);  // the full ones
  CHECK(kv.blocks_held(kFirst) == 0);
  CHECK(kv.blocks_freed_by_evicting(kFirst) == 0);
  kv.check_integrity();
}

TEST_CASE("KvCacheManager: full blocks are found again, never the whole list", "[kvcache]") {
  KvCacheManager kv(options(8));
  compute(kv, kFirst, Text(kv, count_to(10)));
  const auto match = [&](const Text& text) { return kv.match_prefix(text.hashed()); };
  CHECK(match(Text(kv, count_to(10))) == PrefixMatch{8, 2, 2, 0});
  CHECK(match(Text(kv, count_to(9))) == PrefixMatch{8, 2, 2, 0});
  CHECK(match(Text(kv, count_to(8))) == PrefixMatch{7, 1, 1, 0});  // copied out of the second
  CHECK(match(Text(kv, count_to(4))) == PrefixMatch{3, 0, 0, 0});
  CHECK(match(Text(kv, count_to(30))) == PrefixMatch{8, 2, 2, 0});
  CHECK(match(Text(kv, {0, 1, 2, 3, 9, 9, 9, 9, 9})) == PrefixMatch{4, 1, 1, 0});
  CHECK(match(Text(kv, {4, 5, 6, 7, 8})) ==
        PrefixMatch{0, 0, 0, 0});  // equal tokens, another parent
  evict(kv, kFirst);
  CHECK(match(Text(kv, count_to(10))) == PrefixMatch{8, 2, 0, 0});
}

TEST_CASE("KvCacheManager: only committed tokens are published", "[kvcache]") {
  KvCacheManager kv(options(8));
  const Text text(kv, count_to(13));
  kv.admit(kFirst, text.hashed(), 0);
  kv.grow(kFirst, 4);
  CHECK(kv.match_prefix(text.hashed()).tokens == 0);
  kv.commit(kFirst, text.hashed(), 7);
  CHECK(kv.match_prefix(text.hashed()).tokens == 4);
  kv.commit(kFirst, text.hashed(), 8);
  CHECK(kv.match_prefix(text.hashed()).tokens == 8);
  CHECK(kv.is_published(kv.block_table(kFirst)[1]));
  CHECK_FALSE(kv.is_published(kv.block_table(kFirst)[2]));
}

TEST_CASE("KvCacheManager: sequences share blocks and free them with the last", "[kvcache]") {
  KvCacheManager kv(options(8));
  const Text text(kv, count_to(10));
  compute(kv, kFirst, text);
  CHECK(compute(kv, kSecond, text).tokens == 8);
  CHECK(kv.block_table(kFirst)[0] == kv.block_table(kSecond)[0]);
  CHECK(kv.block_table(kFirst)[1] == kv.block_table(kSecond)[1]);
  CHECK(kv.block_table(kFirst)[2] != kv.block_table(kSecond)[2]);
  CHECK(kv.num_live_blocks() == 4);
  CHECK(kv.blocks_freed_by_evicting(kFirst) == 1);
  evict(kv, kFirst);
  CHECK(kv.num_live_blocks() == 3);
  CHECK(kv.blocks_freed_by_evicting(kSecond) == 3);
}

TEST_CASE("KvCacheManager: pinning a cached prefix takes it from the free blocks", "[kvcache]") {
  KvCacheManager kv(options(4));
  const Text text(kv, count_to(9));
  compute(kv, kFirst, text);
  evict(kv, kFirst);
  CHECK(kv.num_free_blocks() == 4);
  CHECK(kv.match_prefix(text.hashed()).stripes == 2);
  CHECK(kv.match_prefix(text.hashed()).live_blocks == 0);
  kv.admit(kSecond, text.hashed(), 8);
  CHECK(kv.num_free_blocks() == 2);
  CHECK(kv.num_cached_blocks() == 0);
}

TEST_CASE("KvCacheManager: a block that was computed twice is kept once", "[kvcache]") {
  KvCacheManager kv(options(8));
  const Text text(kv, count_to(9));
  for (const SequenceId id : {kFirst, kSecond}) {
    kv.admit(id, text.hashed(), 0);
    kv.grow(id, 3);
  }
  kv.commit(kFirst, text.hashed(), 9);
  CHECK(kv.num_free_blocks() == 2);
  kv.commit(kSecond, text.hashed(), 9);
  CHECK(kv.num_free_blocks() == 4);
  CHECK(kv.block_table(kSecond)[1] == kv.block_table(kFirst)[1]);
  CHECK(kv.block_table(kSecond)[2] != kv.block_table(kFirst)[2]);
  kv.check_integrity();

  // Also when the first one's blocks are only cached by then.
  kv.admit(kThird, text.hashed(), 0);
  kv.grow(kThird, 3);
  evict(kv, kFirst);
  evict(kv, kSecond);
  kv.commit(kThird, text.hashed(), 9);
  CHECK(kv.num_live_blocks() == 3);
  kv.check_integrity();
}

TEST_CASE("KvCacheManager: cached blocks are reclaimed least recently used first, children first",
          "[kvcache]") {
  KvCacheManager kv(options(5));
  const Text old_text(kv, count_to(9));
  const Text new_text(kv, {7, 7, 7, 7, 7, 7, 7, 7, 7});
  compute(kv, kFirst, old_text);
  evict(kv, kFirst);
  compute(kv, kSecond, new_text);
  evict(kv, kSecond);
  CHECK(kv.num_cached_blocks() == 4);

  const Text other(kv, std::vector<TokenId>(8, 9));
  kv.admit(kThird, other.hashed(), 0);
  kv.grow(kThird, 1);  // the one that holds nothing
  CHECK(kv.num_cached_blocks() == 4);
  kv.grow(kThird, 1);
  CHECK(kv.match_prefix(old_text.hashed()).stripes == 1);
  CHECK(kv.match_prefix(new_text.hashed()).stripes == 2);
  kv.grow(kThird, 1);
  CHECK(kv.match_prefix(old_text.hashed()).stripes == 0);
  CHECK(kv.match_prefix(new_text.hashed()).stripes == 2);
  kv.check_integrity();
}

TEST_CASE("KvCacheManager: other salts share nothing", "[kvcache]") {
  KvCacheManager kv(options(8));
  compute(kv, kFirst, Text(kv, count_to(9), 1));
  CHECK(kv.match_prefix(Text(kv, count_to(9), 1).hashed()).stripes == 2);
  CHECK(kv.match_prefix(Text(kv, count_to(9), 2).hashed()).stripes == 0);
  CHECK(kv.match_prefix(Text(kv, count_to(9), 0).hashed()).stripes == 0);
}

TEST_CASE("KvCacheManager: other models share nothing", "[kvcache]") {
  KvCacheOptions one = options(8);
  KvCacheOptions other = options(8);
  other.model_hash = 1;
  CHECK(Text(KvCacheManager(one), count_to(9)).chain.blocks()[0] !=
        Text(KvCacheManager(other), count_to(9)).chain.blocks()[0]);
}

TEST_CASE("KvCacheManager: with one hash for everything it still never confuses blocks",
          "[kvcache]") {
  KvCacheOptions weak = options(8);
  weak.hash = constant_hash;
  KvCacheManager kv(weak);
  compute(kv, kFirst, Text(kv, count_to(9), 1));
  CHECK(kv.match_prefix(Text(kv, count_to(9), 1).hashed()).stripes ==
        1);  // its second block found no place
  CHECK(kv.match_prefix(Text(kv, {0, 1, 2, 9, 4, 5}, 1).hashed()).stripes == 0);
  CHECK(kv.match_prefix(Text(kv, count_to(9), 2).hashed()).stripes == 0);
  compute(kv, kSecond, Text(kv, {0, 1, 2, 9, 4, 5}, 1));
  CHECK(kv.num_live_blocks() == 5);
}

TEST_CASE("KvCacheManager: without the prefix cache nothing is kept or found", "[kvcache]") {
  KvCacheOptions off = options(4);
  off.prefix_cache_enabled = false;
  KvCacheManager kv(off);
  compute(kv, kFirst, Text(kv, count_to(9)));
  CHECK(kv.match_prefix(Text(kv, count_to(9)).hashed()).stripes == 0);
  evict(kv, kFirst);
  CHECK(kv.num_cached_blocks() == 0);
  CHECK(kv.num_free_blocks() == 4);
  kv.check_integrity();
}

TEST_CASE("KvCacheManager: truncating takes back blocks past the kept tokens", "[kvcache]") {
  KvCacheManager kv(options(8));
  const Text text(kv, count_to(20));
  kv.admit(kFirst, text.hashed(), 0);
  kv.grow(kFirst, 5);
  kv.commit(kFirst, text.hashed(), 9);
  kv.truncate(kFirst, 12);
  CHECK(kv.blocks_held(kFirst) == 3);
  kv.truncate(kFirst, 9);
  CHECK(kv.blocks_held(kFirst) == 3);
  kv.truncate(kFirst, 8);
  CHECK(kv.blocks_held(kFirst) == 2);
  CHECK(kv.num_free_blocks() == 6);
  kv.check_integrity();
  CHECK(
      testing::aborts([&] { kv.truncate(kFirst, 4); }));  // it is published, somebody may share it
}

TEST_CASE("KvCacheManager: what the planner must not ask for aborts", "[kvcache]") {
  KvCacheManager kv(options(3));
  const Text text(kv, count_to(8));
  kv.admit(kFirst, text.hashed(), 0);
  CHECK(testing::aborts([&] { kv.grow(kFirst, 4); }));
  CHECK(testing::aborts([&] { kv.admit(kFirst, text.hashed(), 0); }));
  CHECK(testing::aborts([&] { kv.admit(kSecond, text.hashed(), 4); }));  // not cached
  CHECK(testing::aborts([&] { kv.commit(kFirst, text.hashed(), 1); }));  // no block for it
  CHECK(testing::aborts([&] { evict(kv, kSecond); }));
  CHECK_FALSE(testing::aborts([&] { kv.grow(kFirst, 3); }));
}

}  // namespace kvasir::kvcache
