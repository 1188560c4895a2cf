// How many references each block has, and which blocks are free: empty ones in a list, and kept
// ones, whose content a later prefix may want. It holds no memory, knows no tokens and does not
// choose which content gives way: that is reclaim_queue's.
#pragma once

#include "core/ids.h"

#include <cstdint>
#include <vector>

namespace kvasir::kvcache {

class BlockPool {
 public:
  explicit BlockPool(std::uint32_t num_blocks);

  [[nodiscard]] std::uint32_t num_blocks() const {
    return static_cast<std::uint32_t>(nodes_.size());
  }
  [[nodiscard]] std::uint32_t num_free() const { return num_empty() + num_kept_; }
  [[nodiscard]] std::uint32_t num_empty() const {
    return static_cast<std::uint32_t>(empty_.size());
  }
  [[nodiscard]] std::uint32_t num_kept() const { return num_kept_; }
  [[nodiscard]] std::uint32_t references(BlockId block) const;
  [[nodiscard]] bool is_kept(BlockId block) const;

  /// Takes an empty block; it then has one reference. Requires num_empty() > 0.
  [[nodiscard]] BlockId allocate();
  /// Adds a reference to a block that has one, or to a kept one, which is free no more.
  void reference(BlockId block);
  enum class Content { kKeep, kDrop };
  /// Drops a reference. With the last one the block is free: kept, or empty.
  void release(BlockId block, Content content);
  /// Makes a kept block an empty one.
  void drop(BlockId block);

 private:
  struct Node {
    std::uint32_t references = 0;
    bool kept = false;  // free, with content
  };
  [[nodiscard]] Node& node(BlockId block);
  [[nodiscard]] const Node& node(BlockId block) const;

  std::vector<Node> nodes_;     // [num_blocks]
  std::vector<BlockId> empty_;  // the last one is taken first: its memory was touched last
  std::uint32_t num_kept_ = 0;
};

}  // namespace kvasir::kvcache
