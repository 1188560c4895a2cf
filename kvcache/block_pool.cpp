// A block is referenced, kept or on the empty list, and nothing else.
#include "kvcache/block_pool.h"

#include "core/check.h"

#include <utility>

namespace kvasir::kvcache {

BlockPool::BlockPool(std::uint32_t num_blocks) : nodes_(num_blocks) {
  empty_.reserve(num_blocks);
  for (std::uint32_t i = num_blocks; i > 0; --i) empty_.push_back(BlockId{i - 1});
}

std::uint32_t BlockPool::references(BlockId block) const { return node(block).references; }

bool BlockPool::is_kept(BlockId block) const { return node(block).kept; }

BlockId BlockPool::allocate() {
  KVASIR_CHECK(!empty_.empty(), "no empty block of " << num_blocks());
  const BlockId block = empty_.back();
  empty_.pop_back();
  node(block).references = 1;
  return block;
}

void BlockPool::reference(BlockId block) {
  Node& referenced = node(block);
  KVASIR_CHECK(referenced.references > 0 || referenced.kept,
               "block " << value_of(block) << " is empty");
  if (referenced.kept) --num_kept_;
  referenced.kept = false;
  ++referenced.references;
}

void BlockPool::release(BlockId block, Content content) {
  Node& released = node(block);
  KVASIR_CHECK(released.references > 0, "block " << value_of(block) << " is free already");
  if (--released.references > 0) return;
  if (content == Content::kKeep) {
    released.kept = true;
    ++num_kept_;
  } else {
    empty_.push_back(block);
  }
}

void BlockPool::drop(BlockId block) {
  Node& dropped = node(block);
  KVASIR_CHECK(dropped.kept, "block " << value_of(block) << " is not kept");
  dropped.kept = false;
  --num_kept_;
  empty_.push_back(block);
}

const BlockPool::Node& BlockPool::node(BlockId block) const {
  KVASIR_CHECK(value_of(block) < num_blocks(), value_of(block) << " of " << num_blocks());
  return nodes_[value_of(block)];
}

BlockPool::Node& BlockPool::node(BlockId block) {
  return const_cast<Node&>(std::as_const(*this).node(block));
}

}  // namespace kvasir::kvcache
