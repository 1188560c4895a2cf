// Which blocks are free, and how many tables reference the others. The free list is in reclaim
// order: blocks without content first, then cached ones, least recently released first. It holds no
// memory and knows no tokens.
#pragma once

#include "core/ids.h"

#include <cstdint>
#include <vector>

namespace kvasir::kvcache {

class BlockPool {
 public:
  explicit BlockPool(std::uint32_t num_blocks);

  [[nodiscard]] std::uint32_t num_blocks() const { return num_blocks_; }
  [[nodiscard]] std::uint32_t num_free() const { return num_free_; }
  [[nodiscard]] std::uint32_t references(BlockId block) const { return node(block).references; }
  /// Blocks on the free list, counted by walking it; for integrity checks.
  [[nodiscard]] std::uint32_t count_free_list() const;

  /// Takes the first block in reclaim order; it then has one reference. Requires num_free() > 0.
  [[nodiscard]] BlockId allocate();
  /// Adds a reference; a free block leaves the free list with its content.
  void reference(BlockId block);
  enum class Content { kKeep, kDrop };
  /// Drops a reference. With the last one the block is free: kKeep queues it last, kDrop first.
  void release(BlockId block, Content content);

 private:
  struct Node {
    std::uint32_t references = 0;
    std::uint32_t previous =
        0;  // in the free list; num_blocks_ is the sentinel that closes the ring
    std::uint32_t next = 0;
  };
  [[nodiscard]] Node& node(BlockId block);
  [[nodiscard]] const Node& node(BlockId block) const;
  void link(std::uint32_t block, std::uint32_t before);
  void unlink(std::uint32_t block);

  std::uint32_t num_blocks_;
  std::uint32_t num_free_;
  std::vector<Node> nodes_;  // [num_blocks + 1]
};

}  // namespace kvasir::kvcache
