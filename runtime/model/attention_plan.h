// Which rows of a step attend together, over which ranges, and which worker does what. Pure
// arithmetic over the batch's shape and block tables: nothing is computed on floats here, and no
// result depends on what is decided (attention_kernels.h), only the time.
//
// A row block is what reads the same K and V: some queries of one chunk and the query heads of one
// KV head. A work item is one row block over a span of ranges, or several of them where their
// sequences have the same blocks: a prefix that sequences share is read once for all of them.
// Workers have contiguous shares of the items. Where a share ends inside of an item, and after a
// shared prefix, rows are put together from partial results of their ranges.
//
// Layers that see a window have a plan of their own, one for each layer group: it has the ranges
// that the window reaches only.
#pragma once

#include "runtime/batch.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::runtime {

struct AttentionPlanLimits {
  std::uint32_t num_threads = 1;
  std::uint32_t max_step_tokens = 0;
  std::uint32_t max_chunks = 0;
  std::uint32_t num_heads = 0;
  std::uint32_t num_kv_heads = 0;  // divides num_heads
  std::uint32_t block_tokens = 0;  // divides kAttentionRange
  std::uint64_t max_partials = 0;  // results of one range of one row, at most
  /// The layer group whose block tables are read, its blocks of block_tokens tokens, and how many
  /// positions its layers see (0: all).
  std::uint32_t group = 0;
  std::uint32_t blocks_per_stripe = 1;
  std::uint32_t window_tokens = 0;
};

/// Query heads that one task computes with their KV head: all of its group, unless those are more
/// than a task takes.
struct HeadGroup {
  std::uint32_t kv_head = 0;
  std::uint32_t first_head = 0;
  std::uint32_t num_heads = 0;
};

struct RowBlock {
  static constexpr std::uint64_t kNoPartials = ~std::uint64_t{0};

  std::uint32_t chunk = 0;
  std::uint32_t head_group = 0;
  std::uint32_t first_query = 0;  // index within the chunk
  std::uint32_t num_queries = 0;
  /// From the first that the first query sees to the last that the last one does.
  std::uint32_t first_range = 0;
  std::uint32_t end_range = 0;
  /// Where its partial results begin, counted in them: row (query i, head h) has num_ranges() of
  /// them from first_partial + (i * heads of the group + h) * num_ranges() on.
  std::uint64_t first_partial = kNoPartials;

  [[nodiscard]] std::uint32_t num_ranges() const { return end_range - first_range; }
};

/// Row blocks that are computed together over ranges [first_range, end_range).
struct AttentionWork {
  std::uint32_t first_member = 0;  // see AttentionPlan::row_block
  std::uint32_t num_members = 0;
  std::uint32_t first_range = 0;
  std::uint32_t end_range = 0;
  std::uint32_t num_positions = 0;  // of these ranges that the last row sees
  std::uint32_t num_rows = 0;
};

class AttentionPlan {
 public:
  explicit AttentionPlan(const AttentionPlanLimits& limits);
  [[nodiscard]] static std::uint64_t buffer_bytes(const AttentionPlanLimits& limits);

  /// first_query[c]: queries of chunk c before it are not computed. Allocates nothing.
  /// Requires: a batch within the limits whose tables cover its tokens.
  void build(const Batch& batch, std::span<const std::uint32_t> first_query);

  /// Calls op(work) for every item of a worker, its ranges cut to the worker's share.
  template <typename Op>
  void for_each_work(std::uint32_t worker, const Op& op) const;
  /// Calls op(row block, row) for every row that the worker puts together; a row is a query and a
  /// head of the block, queries first.
  template <typename Op>
  void for_each_merge(std::uint32_t worker, const Op& op) const;

  [[nodiscard]] bool needs_merge() const { return num_partials_ > 0; }
  [[nodiscard]] const RowBlock& row_block(std::size_t member) const {
    return row_blocks_[members_[member]];
  }
  [[nodiscard]] const HeadGroup& head_group(const RowBlock& block) const {
    return head_groups_[block.head_group];
  }
  [[nodiscard]] std::uint64_t num_partials() const { return num_partials_; }
  /// The first position that a query at `position` sees.
  [[nodiscard]] std::uint32_t first_visible(std::uint32_t position) const {
    const std::uint32_t window = limits_.window_tokens;
    return window == 0 || position < window ? 0 : position + 1 - window;
  }

 private:
  /// Where a share begins: before `range` of an item.
  struct Cut {
    std::size_t work = 0;
    std::uint32_t range = 0;
  };
  /// A chunk whose rows are so few that others may join them.
  struct SmallChunk {
    std::uint32_t chunk = 0;
    std::uint32_t num_rows = 0;          // of each head group
    std::uint32_t whole_ranges = 0;      // that its first computed query sees
    std::uint32_t shared_ranges = 0;     // of these, computed together with other chunks
    std::uint32_t common_with_next = 0;  // ranges with the same blocks, in the sorted order
    std::span<const BlockId> blocks;     // of the whole ranges
    std::size_t first_row_block = 0;     // of one for each head group
  };

  void add_row_blocks(const Batch& batch, std::span<const std::uint32_t> first_query);
  void share(std::size_t begin, std::size_t end, std::uint32_t depth);
  [[nodiscard]] bool sharing_wins(std::size_t begin, std::size_t end,
                                  std::uint32_t num_ranges) const;
  void add_shared_work(std::size_t begin, std::size_t end, std::uint32_t first_range,
                       std::uint32_t end_range);
  void add_own_work(const Batch& batch);
  void cut_shares();
  [[nodiscard]] Cut cut_at(std::size_t work, std::uint64_t before, std::uint64_t target);
  [[nodiscard]] std::uint32_t common_ranges(const SmallChunk& a, const SmallChunk& b) const;
  [[nodiscard]] std::size_t table_entries_of_range() const;
  [[nodiscard]] std::uint64_t partials_of(const RowBlock& block) const;
  [[nodiscard]] bool give_partials(RowBlock& block);

  AttentionPlanLimits limits_;
  std::uint32_t block_queries_ = 1;  // queries of a row block at most
  std::vector<HeadGroup> head_groups_;
  std::vector<RowBlock> row_blocks_;
  std::vector<std::uint32_t> shared_ranges_;  // [row blocks]: these are others' work
  std::vector<SmallChunk> small_chunks_;
  std::vector<std::size_t> members_;  // row blocks of the work items, item after item
  std::vector<AttentionWork> works_;
  std::vector<Cut> cuts_;  // [workers + 1]
  std::uint64_t num_partials_ = 0;
};

template <typename Op>
void AttentionPlan::for_each_work(std::uint32_t worker, const Op& op) const {
  const Cut begin = cuts_[worker], end = cuts_[worker + 1];
  for (std::size_t i = begin.work; i <= end.work && i < works_.size(); ++i) {
    AttentionWork work = works_[i];
    if (i == begin.work) work.first_range = begin.range;
    if (i == end.work) work.end_range = end.range;
    if (work.first_range < work.end_range) op(work);
  }
}

template <typename Op>
void AttentionPlan::for_each_merge(std::uint32_t worker, const Op& op) const {
  for (const RowBlock& block : row_blocks_) {
    if (block.first_partial == RowBlock::kNoPartials) continue;
    const std::uint32_t num_rows = block.num_queries * head_group(block).num_heads;
    for (std::uint32_t row = 0; row < num_rows; ++row) {
      // A row is merged by the worker in whose share of the partials it begins.
      const std::uint64_t first = block.first_partial + std::uint64_t{row} * block.num_ranges();
      if (first * limits_.num_threads / num_partials_ == worker) op(block, row);
    }
  }
}

}  // namespace kvasir::runtime
