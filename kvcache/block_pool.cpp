// A ring through an array: node num_blocks_ is the sentinel, its next the first block to reclaim.
#include "kvcache/block_pool.h"

#include "core/check.h"

namespace kvasir::kvcache {

BlockPool::BlockPool(std::uint32_t num_blocks)
    : num_blocks_(num_blocks), num_free_(num_blocks), nodes_(std::size_t{num_blocks} + 1) {
  for (std::uint32_t i = 0; i <= num_blocks_; ++i) {
    nodes_[i].next = i == num_blocks_ ? 0 : i + 1;
    nodes_[i].previous = i == 0 ? num_blocks_ : i - 1;
  }
}

std::uint32_t BlockPool::count_free_list() const {
  std::uint32_t count = 0;
  for (std::uint32_t i = nodes_[num_blocks_].next; i != num_blocks_; i = nodes_[i].next) {
    KVASIR_CHECK(nodes_[i].references == 0, "block " << i << " is free and referenced");
    ++count;
    KVASIR_CHECK(count <= num_blocks_, "the free list runs in a circle");
  }
  return count;
}

BlockId BlockPool::allocate() {
  KVASIR_CHECK(num_free_ > 0, "no free block of " << num_blocks_);
  const std::uint32_t first = nodes_[num_blocks_].next;
  unlink(first);
  nodes_[first].references = 1;
  return BlockId{first};
}

void BlockPool::reference(BlockId block) {
  if (node(block).references == 0) unlink(value_of(block));
  ++node(block).references;
}

void BlockPool::release(BlockId block, Content content) {
  KVASIR_CHECK(node(block).references > 0, "block " << value_of(block) << " is free already");
  if (--node(block).references > 0) return;
  link(value_of(block), content == Content::kKeep ? num_blocks_ : nodes_[num_blocks_].next);
}

const BlockPool::Node& BlockPool::node(BlockId block) const {
  KVASIR_CHECK(value_of(block) < num_blocks_, value_of(block) << " of " << num_blocks_);
  return nodes_[value_of(block)];
}

BlockPool::Node& BlockPool::node(BlockId block) {
  KVASIR_CHECK(value_of(block) < num_blocks_, value_of(block) << " of " << num_blocks_);
  return nodes_[value_of(block)];
}

void BlockPool::link(std::uint32_t block, std::uint32_t before) {
  const std::uint32_t previous = nodes_[before].previous;
  nodes_[block].previous = previous;
  nodes_[block].next = before;
  nodes_[previous].next = block;
  nodes_[before].previous = block;
  ++num_free_;
}

void BlockPool::unlink(std::uint32_t block) {
  nodes_[nodes_[block].previous].next = nodes_[block].next;
  nodes_[nodes_[block].next].previous = nodes_[block].previous;
  --num_free_;
}

}  // namespace kvasir::kvcache
