// Every change of an entry goes through hold() or release(), which keep the counts.
#include "kvcache/block_table.h"

#include "core/check.h"

#include <algorithm>

namespace kvasir::kvcache {

BlockTable::BlockTable(const KvGeometry& geometry) : blocks_(geometry.groups.size()) {
  for (std::size_t group = 0; group < blocks_.size(); ++group) {
    stripe_blocks_[group] = geometry.blocks_per_stripe(group);
  }
}

std::span<const BlockId> BlockTable::blocks(std::size_t group) const {
  KVASIR_CHECK(group < blocks_.size(), group << " of " << blocks_.size() << " groups");
  return blocks_[group];
}

std::span<const BlockId> BlockTable::stripe(std::size_t group, std::uint32_t index) const {
  KVASIR_CHECK(holds(group, index), "stripe " << index << " of group " << group << " is not held");
  return blocks(group).subspan(std::size_t{index} * stripe_blocks_[group], stripe_blocks_[group]);
}

std::uint32_t BlockTable::num_freed_by_closing(const BlockStore& store) const {
  std::uint32_t freed = 0;
  const auto count = [&](std::span<const BlockId> blocks) {
    for (const BlockId block : blocks) freed += store.pool().references(block) == 1 ? 1 : 0;
  };
  for (std::size_t group = 0; group < blocks_.size(); ++group) {
    count(blocks(group).subspan(std::size_t{first_held_[group]} * stripe_blocks_[group]));
    count(pinned_[group]);
  }
  return freed;
}

void BlockTable::grow(BlockStore& store) {
  for (std::size_t group = 0; group < blocks_.size(); ++group) {
    store.allocate(group, blocks_[group]);
    num_held_ += stripe_blocks_[group];
    receipt_.taken_blocks += stripe_blocks_[group];
  }
  shared_.push_back(0);
  note_peak();
}

void BlockTable::share(BlockStore& store, const Stripes& stripes) {
  shared_.push_back(0);
  for (std::size_t group = 0; group < blocks_.size(); ++group) {
    std::vector<BlockId>& table = blocks_[group];
    if (stripes[group].empty()) {
      KVASIR_CHECK(first_held_[group] + 1 == num_stripes(), "a hole in group " << group);
      table.insert(table.end(), stripe_blocks_[group], kNoBlock);
      first_held_[group] = num_stripes();
      continue;
    }
    hold(store, group, stripes[group]);
    table.insert(table.end(), stripes[group].begin(), stripes[group].end());
    num_held_ += stripe_blocks_[group];
    num_shared_ += stripe_blocks_[group];
    shared_.back() = static_cast<std::uint8_t>(shared_.back() | 1U << group);
  }
  note_peak();
}

void BlockTable::exchange(BlockStore& store, std::size_t group, std::uint32_t index,
                          std::span<const BlockId> other) {
  hold(store, group, other);
  release(store, group, index, BlockStore::Use::kEnds);
  std::ranges::copy(other, blocks_[group].begin() +
                               std::ptrdiff_t{index} * std::ptrdiff_t{stripe_blocks_[group]});
  num_held_ += stripe_blocks_[group];
  num_shared_ += stripe_blocks_[group];
  shared_[index] = static_cast<std::uint8_t>(shared_[index] | 1U << group);
}

void BlockTable::pop(BlockStore& store) {
  for (std::size_t group = 0; group < blocks_.size(); ++group) {
    if (holds(group, num_stripes() - 1)) {
      release(store, group, num_stripes() - 1, BlockStore::Use::kEnds);
    }
    blocks_[group].resize(blocks_[group].size() - stripe_blocks_[group]);
    first_held_[group] = std::min(first_held_[group], num_stripes() - 1);
  }
  shared_.pop_back();
}

void BlockTable::slide(BlockStore& store, std::size_t group, std::uint32_t first) {
  KVASIR_CHECK(first <= num_stripes(), "a window past the table");
  for (std::uint32_t index = first_held_[group]; index < first; ++index) {
    release(store, group, index, BlockStore::Use::kWindowPassed);
  }
  first_held_[group] = std::max(first_held_[group], first);
}

void BlockTable::close(BlockStore& store) {
  for (std::size_t group = 0; group < blocks_.size(); ++group) unpin(store, group);
  while (num_stripes() > 0) pop(store);
}

void BlockTable::pin(BlockStore& store, std::size_t group, std::span<const BlockId> stripe) {
  hold(store, group, stripe);
  pinned_[group].insert(pinned_[group].end(), stripe.begin(), stripe.end());
  note_peak();
}

void BlockTable::unpin(BlockStore& store, std::size_t group) {
  const std::span<const BlockId> pinned = pinned_[group];
  // From the end: a parent is released after its children.
  for (std::size_t end = pinned.size(); end > 0; end -= stripe_blocks_[group]) {
    receipt_.returned_blocks +=
        store.release(group, pinned.subspan(end - stripe_blocks_[group], stripe_blocks_[group]),
                      BlockStore::Use::kEnds);
  }
  pinned_[group].clear();
}

void BlockTable::count_references(std::vector<std::uint32_t>& held) const {
  std::uint32_t num_held = 0;
  std::uint32_t num_shared = 0;
  for (std::size_t group = 0; group < blocks_.size(); ++group) {
    KVASIR_CHECK(blocks_[group].size() == std::size_t{num_stripes()} * stripe_blocks_[group]);
    for (std::uint32_t index = 0; index < num_stripes(); ++index) {
      for (std::uint32_t i = 0; i < stripe_blocks_[group]; ++i) {
        const BlockId block = blocks_[group][index * stripe_blocks_[group] + i];
        KVASIR_CHECK((block != kNoBlock) == holds(group, index), "a hole in group " << group);
        if (block == kNoBlock) continue;
        ++held[value_of(block)];
        ++num_held;
        num_shared += (shared_[index] >> group & 1U) != 0 ? 1 : 0;
      }
    }
    for (const BlockId block : pinned_[group]) ++held[value_of(block)];
  }
  KVASIR_CHECK(num_held == num_held_, num_held << " held, counted " << num_held_);
  KVASIR_CHECK(num_shared == num_shared_, num_shared << " shared, counted " << num_shared_);
}

void BlockTable::hold(BlockStore& store, std::size_t group, std::span<const BlockId> stripe) {
  receipt_.taken_blocks += store.hold(group, stripe);
}

void BlockTable::release(BlockStore& store, std::size_t group, std::uint32_t index,
                         BlockStore::Use use) {
  const auto first = blocks_[group].begin() + std::ptrdiff_t{index} * stripe_blocks_[group];
  const std::span<BlockId> released(first, stripe_blocks_[group]);
  receipt_.returned_blocks += store.release(group, released, use);
  std::ranges::fill(released, kNoBlock);
  num_held_ -= stripe_blocks_[group];
  if ((shared_[index] >> group & 1U) != 0) num_shared_ -= stripe_blocks_[group];
  shared_[index] = static_cast<std::uint8_t>(shared_[index] & ~(1U << group));
}

void BlockTable::note_peak() {
  std::uint32_t num_pinned = 0;
  for (const std::vector<BlockId>& pinned : pinned_) {
    num_pinned += static_cast<std::uint32_t>(pinned.size());
  }
  if (num_held_ + num_pinned <= receipt_.peak_blocks) return;
  receipt_.peak_blocks = num_held_ + num_pinned;
  receipt_.shared_blocks = num_shared_ + num_pinned;
}

}  // namespace kvasir::kvcache
