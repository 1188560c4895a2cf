// Names for full blocks: a 128-bit hash chained over everything that decides what the block's keys
// and values are. A hash only finds a candidate; prefix_cache compares tokens, parent and salt, so
// that a collision is a miss.
#pragma once

#include "core/ids.h"
#include "kvcache/kv_geometry.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::kvcache {

/// Two independently mixed 64-bit lanes.
struct BlockHash {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};

/// What blocks with equal tokens must also share before they may share bytes.
struct CacheDomain {
  std::uint64_t model_hash =
      0;  // the model file and every setting that changes K or V (rope scaling, ...)
  KvType type = KvType::kF16;
  std::uint64_t cache_salt = 0;  // the request's, and later its tenant's
};

/// The parent of a first block. Fields go in length-prefixed, so that they cannot run together.
[[nodiscard]] BlockHash hash_domain(const CacheDomain& domain);
/// The hash of a full block from its parent's (the domain's for the first block).
[[nodiscard]] BlockHash hash_block(const BlockHash& parent, std::span<const TokenId> tokens);
/// hash_block in service; tests pass weak ones to force collisions.
using BlockHashFn = BlockHash (*)(const BlockHash& parent, std::span<const TokenId> tokens);

/// The hashes of all full blocks of one token list. It grows with the list and hashes each block
/// once.
class HashChain {
 public:
  /// A chain that stays empty: nothing matches, nothing is published (prefix cache off).
  HashChain() = default;
  HashChain(const CacheDomain& domain, std::uint32_t block_tokens, BlockHashFn hash);

  /// Hashes the blocks that have become full. `tokens` is the whole list; what was hashed before
  /// must not change.
  void extend(std::span<const TokenId> tokens);

  [[nodiscard]] std::span<const BlockHash> blocks() const { return hashes_; }
  [[nodiscard]] std::uint64_t cache_salt() const { return cache_salt_; }
  /// False for the one that stays empty.
  [[nodiscard]] bool is_enabled() const { return block_tokens_ > 0; }
  [[nodiscard]] std::uint32_t block_tokens() const { return block_tokens_; }

 private:
  BlockHash root_;
  std::uint32_t block_tokens_ = 0;  // 0: stays empty
  std::uint64_t cache_salt_ = 0;
  BlockHashFn hash_ = nullptr;
  std::vector<BlockHash> hashes_;  // [full blocks]
};

/// A token list and its chain, as the prefix cache is asked about it.
struct HashedTokens {
  std::span<const TokenId> tokens;
  const HashChain& hashes;
};

}  // namespace kvasir::kvcache
