// The blocks of one sequence, in order, for each layer group: held while they are in the table,
// given back when they leave it, and counted. Which of them are published, and when they come and
// go, is kv_cache_manager's.
#pragma once

#include "core/ids.h"
#include "kvcache/block_store.h"
#include "kvcache/kv_geometry.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::kvcache {

/// What a sequence took from the pool and gave back while it held a table, in blocks. A block is
/// taken when it was free before and returned when it is free afterwards, whether it keeps its
/// content for a later prefix or not: summed over all sequences, taken less returned is live.
struct KvReceipt {
  std::uint32_t peak_blocks = 0;    // the most that it held at once: shared ones included, and what
                                    // it copied from as long as that was pinned
  std::uint32_t shared_blocks = 0;  // those of them, at that moment, that it had not allocated:
                                    // from the prefix cache or from a fork's source
  std::uint64_t taken_blocks = 0;
  std::uint64_t returned_blocks = 0;
  friend bool operator==(const KvReceipt&, const KvReceipt&) = default;
};

/// Stripes are counted from the sequence's first token. All groups end at the same one; those of a
/// windowed group begin where the window was last time.
class BlockTable {
 public:
  explicit BlockTable(const KvGeometry& geometry);

  [[nodiscard]] std::uint32_t num_stripes() const {
    return static_cast<std::uint32_t>(shared_.size());
  }
  /// Entry stripe * blocks_per_stripe + i; kNoBlock for what is not held.
  [[nodiscard]] std::span<const BlockId> blocks(std::size_t group) const;
  /// Requires holds().
  [[nodiscard]] std::span<const BlockId> stripe(std::size_t group, std::uint32_t index) const;
  [[nodiscard]] bool holds(std::size_t group, std::uint32_t index) const {
    return index >= first_held_[group] && index < num_stripes();
  }
  [[nodiscard]] std::uint32_t first_held(std::size_t group) const { return first_held_[group]; }
  [[nodiscard]] std::uint32_t num_held() const { return num_held_; }  // blocks
  [[nodiscard]] const KvReceipt& receipt() const { return receipt_; }
  /// Of the blocks of the table and the pinned ones, those that only it references.
  [[nodiscard]] std::uint32_t num_freed_by_closing(const BlockStore& store) const;

  /// Appends a stripe of every group: empty blocks.
  void grow(BlockStore& store);
  /// Appends a stripe: the groups whose entry is empty are not held. Requires: a group that was
  /// held stays so.
  using Stripes = std::array<std::span<const BlockId>, kMaxLayerGroups>;
  void share(BlockStore& store, const Stripes& stripes);
  /// Puts another stripe of the same content in the place of one.
  void exchange(BlockStore& store, std::size_t group, std::uint32_t index,
                std::span<const BlockId> other);
  /// Gives back the last stripe of every group.
  void pop(BlockStore& store);
  /// Gives back the stripes of a group before `first`.
  void slide(BlockStore& store, std::size_t group, std::uint32_t first);
  /// Gives everything back, from the end.
  void close(BlockStore& store);

  /// Blocks of a group held beside the table, until unpin().
  void pin(BlockStore& store, std::size_t group, std::span<const BlockId> stripe);
  void unpin(BlockStore& store, std::size_t group);
  [[nodiscard]] std::span<const BlockId> pinned(std::size_t group) const { return pinned_[group]; }

  /// Adds the references of this table to `held`, and checks its own counts.
  void count_references(std::vector<std::uint32_t>& held) const;

 private:
  void hold(BlockStore& store, std::size_t group, std::span<const BlockId> stripe);
  void release(BlockStore& store, std::size_t group, std::uint32_t index, BlockStore::Use use);
  void note_peak();

  std::vector<std::vector<BlockId>> blocks_;  // [groups][stripes * blocks_per_stripe]
  std::vector<std::uint8_t> shared_;          // [stripes]: bit g: group g's was not allocated here
  std::array<std::uint32_t, kMaxLayerGroups> first_held_{};
  std::array<std::vector<BlockId>, kMaxLayerGroups> pinned_;  // whole stripes
  std::array<std::uint32_t, kMaxLayerGroups> stripe_blocks_{};
  std::uint32_t num_held_ = 0;
  std::uint32_t num_shared_ = 0;
  KvReceipt receipt_;
};

}  // namespace kvasir::kvcache
