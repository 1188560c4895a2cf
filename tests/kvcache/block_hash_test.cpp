// The name of a block depends on everything that its bytes depend on, and on nothing else.
#include "kvcache/block_hash.h"

#include "tests/support/catch.h"

#include <set>
#include <vector>

namespace kvasir::kvcache {
namespace {

std::uint32_t num_hashed = 0;
BlockHash counting_hash(const BlockHash& parent, std::span<const TokenId> tokens) {
  ++num_hashed;
  return hash_block(parent, tokens);
}

}  // namespace

TEST_CASE("hash_domain: every field changes both lanes", "[kvcache]") {
  const CacheDomain base{.model_hash = 7, .type = KvType::kF16, .cache_salt = 9};
  const BlockHash hash = hash_domain(base);
  CHECK(hash_domain(base) == hash);
  for (const CacheDomain& other :
       {CacheDomain{.model_hash = 8, .type = KvType::kF16, .cache_salt = 9},
        CacheDomain{.model_hash = 7, .type = KvType::kBf16, .cache_salt = 9},
        CacheDomain{.model_hash = 7, .type = KvType::kF16, .cache_salt = 10},
        CacheDomain{.model_hash = 9, .type = KvType::kF16, .cache_salt = 7}}) {
    CHECK(hash_domain(other).high != hash.high);
    CHECK(hash_domain(other).low != hash.low);
  }
}

TEST_CASE("hash_block: parent, order and length count", "[kvcache]") {
  const BlockHash root = hash_domain({});
  const std::vector<TokenId> tokens{1, 2, 3, 4};
  const BlockHash hash = hash_block(root, tokens);
  CHECK(hash_block(root, tokens) == hash);
  CHECK(hash_block(hash, tokens) != hash);
  CHECK(hash_block(root, std::vector<TokenId>{2, 1, 3, 4}) != hash);
  CHECK(hash_block(root, std::vector<TokenId>{1, 2, 4, 3}) != hash);
  CHECK(hash_block(root, std::vector<TokenId>{1, 2, 3, 4, 0}) != hash);
  CHECK(hash_block(root, std::vector<TokenId>{1, 2, 3}) != hash);
  // The same tokens cut elsewhere are other blocks.
  CHECK(hash_block(hash_block(root, std::vector<TokenId>{1, 2}), std::vector<TokenId>{3, 4}) !=
        hash);
}

TEST_CASE("hash_block: neither lane alone meets itself in many similar blocks", "[kvcache]") {
  std::set<std::uint64_t> high;
  std::set<std::uint64_t> low;
  const BlockHash root = hash_domain({});
  constexpr std::uint32_t kBlocks = 50'000;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    const BlockHash hash = hash_block(root, std::vector<TokenId>{i % 251, 5, i / 251, 5});
    high.insert(hash.high);
    low.insert(hash.low);
  }
  CHECK(high.size() == kBlocks);
  CHECK(low.size() == kBlocks);
}

TEST_CASE("HashChain: hashes full blocks only, and each once", "[kvcache]") {
  num_hashed = 0;
  HashChain chain({}, 4, counting_hash);
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < 11; ++token) {
    tokens.push_back(token);
    chain.extend(tokens);
  }
  CHECK(chain.blocks().size() == 2);
  CHECK(num_hashed == 2);
  CHECK(chain.blocks()[1] == hash_block(chain.blocks()[0], std::span(tokens).subspan(4, 4)));
  CHECK(chain.blocks()[0] == hash_block(hash_domain({}), std::span(tokens).first(4)));
}

TEST_CASE("HashChain: one without a domain stays empty", "[kvcache]") {
  HashChain chain;
  chain.extend(std::vector<TokenId>(100, 1));
  CHECK(chain.blocks().empty());
}

}  // namespace kvasir::kvcache
