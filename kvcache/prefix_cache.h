// From the hash of a full block to the block that holds it. A hit compares tokens, parent block and
// salt, so that a hash collision is a miss. It counts no references and frees nothing: that is
// kv_cache_manager's.
#pragma once

#include "core/ids.h"
#include "kvcache/block_hash.h"

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvasir::kvcache {

/// Everything that identifies the content of a full block.
struct BlockIdentity {
  BlockHash hash;
  std::optional<BlockId> parent;  // the published block before it; none for the first
  std::uint64_t cache_salt = 0;
  std::span<const TokenId> tokens;  // [block_tokens]
};

/// All memory is taken at construction; with 0 blocks it is off and finds nothing. The caller keeps
/// a parent published for as long as its children are.
class PrefixCache {
 public:
  PrefixCache(std::uint32_t num_blocks, std::uint32_t block_tokens);

  /// The published block of this very content, or none.
  [[nodiscard]] std::optional<BlockId> find(const BlockIdentity& wanted) const;
  /// Publishes a block. False when another content with the same hash is there: the first one
  /// stays.
  [[nodiscard]] bool insert(BlockId block, const BlockIdentity& identity);
  /// Forgets a block. Requires: it is published and no published block has it as parent.
  void erase(BlockId block);
  [[nodiscard]] bool contains(BlockId block) const;
  [[nodiscard]] std::optional<BlockId> parent(BlockId block) const;
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(by_hash_.size()); }

 private:
  struct HashOfHash {
    std::size_t operator()(const BlockHash& hash) const {
      return static_cast<std::size_t>(hash.low);
    }
  };
  struct Entry {
    BlockHash hash;
    std::optional<BlockId> parent;
    std::uint64_t cache_salt = 0;
    std::uint32_t num_children = 0;  // published blocks whose parent this is
    bool published = false;
  };
  [[nodiscard]] std::span<const TokenId> tokens_of(BlockId block) const;

  std::uint32_t block_tokens_;
  std::vector<Entry> entries_;   // [num_blocks]
  std::vector<TokenId> tokens_;  // [num_blocks][block_tokens]
  std::unordered_map<BlockHash, BlockId, HashOfHash> by_hash_;
};

}  // namespace kvasir::kvcache
