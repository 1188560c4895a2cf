// A hit needs equal tokens, parent and salt; the hash alone is never believed.
#include "kvcache/prefix_cache.h"

#include "tests/support/aborts.h"
#include "tests/support/catch.h"

#include <vector>

namespace kvasir::kvcache {
namespace {

constexpr BlockHash kHash{1, 2};
const std::vector<TokenId> kTokens{5, 6};
const std::vector<TokenId> kOtherTokens{5, 7};

}  // namespace

TEST_CASE("PrefixCache: a collision in the hash is a miss", "[kvcache]") {
  PrefixCache cache(4, 2);
  REQUIRE(cache.insert(BlockId{0}, {kHash, {}, 3, kTokens}));
  REQUIRE(cache.insert(BlockId{1}, {BlockHash{9, 9}, {}, 3, kOtherTokens}));
  CHECK(cache.find({kHash, {}, 3, kTokens}) == BlockId{0});
  CHECK_FALSE(cache.find({kHash, {}, 3, kOtherTokens}).has_value());
  CHECK_FALSE(cache.find({kHash, {}, 4, kTokens}).has_value());
  CHECK_FALSE(cache.find({kHash, BlockId{1}, 3, kTokens}).has_value());
  CHECK_FALSE(cache.find({BlockHash{1, 3}, {}, 3, kTokens}).has_value());
  CHECK_FALSE(cache.find({BlockHash{2, 2}, {}, 3, kTokens}).has_value());
}

TEST_CASE("PrefixCache: of two contents with one hash the first stays", "[kvcache]") {
  PrefixCache cache(4, 2);
  REQUIRE(cache.insert(BlockId{0}, {kHash, {}, 0, kTokens}));
  CHECK_FALSE(cache.insert(BlockId{1}, {kHash, {}, 0, kOtherTokens}));
  CHECK_FALSE(cache.contains(BlockId{1}));
  CHECK(cache.find({kHash, {}, 0, kTokens}) == BlockId{0});
  CHECK(cache.size() == 1);
}

TEST_CASE("PrefixCache: an erased block is not found, and its place can be taken", "[kvcache]") {
  PrefixCache cache(4, 2);
  REQUIRE(cache.insert(BlockId{0}, {kHash, {}, 0, kTokens}));
  cache.erase(BlockId{0});
  CHECK_FALSE(cache.find({kHash, {}, 0, kTokens}).has_value());
  REQUIRE(cache.insert(BlockId{0}, {kHash, {}, 0, kOtherTokens}));
  CHECK(cache.find({kHash, {}, 0, kOtherTokens}) == BlockId{0});
}

TEST_CASE("PrefixCache: a parent cannot go before its children", "[kvcache]") {
  PrefixCache cache(4, 2);
  REQUIRE(cache.insert(BlockId{0}, {kHash, {}, 0, kTokens}));
  REQUIRE(cache.insert(BlockId{1}, {BlockHash{3, 4}, BlockId{0}, 0, kTokens}));
  CHECK(testing::aborts([&] { cache.erase(BlockId{0}); }));
  cache.erase(BlockId{1});
  CHECK_FALSE(testing::aborts([&] { cache.erase(BlockId{0}); }));
}

TEST_CASE("PrefixCache: without blocks it is off", "[kvcache]") {
  PrefixCache cache(0, 2);
  CHECK_FALSE(cache.find({kHash, {}, 0, kTokens}).has_value());
  CHECK_FALSE(cache.contains(BlockId{7}));
}

}  // namespace kvasir::kvcache
