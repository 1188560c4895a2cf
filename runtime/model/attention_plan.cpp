#include "runtime/model/attention_plan.h"

#include "core/check.h"
#include "runtime/kernels/attention_kernels.h"

#include <algorithm>

namespace kvasir::runtime {
namespace {

/// Rows of a row block: five tiles of twelve, or ten of six, and no rest.
constexpr std::uint32_t kBlockRows = 60;
static_assert(kBlockRows <= kMaxAttentionRows);

/// Costs are counted in rows times positions: about a nanosecond each, where AVX-512 is. Loading a
/// position's K and V, from memory at worst, takes as long as computing this many rows of it.
constexpr std::uint64_t kLoadRows = 4;
/// Storing a partial result and merging it.
constexpr std::uint64_t kPartialCost = 30;
/// A cut within an item must gain so much, because it brings a second phase with a barrier. Two
/// microseconds.
constexpr std::uint64_t kCutGain = 1500;

/// Shared prefixes of shared prefixes are looked at to this depth, which bounds the items.
constexpr std::uint32_t kMaxSharedDepth = 4;

std::uint32_t div_ceil(std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; }

std::uint64_t cost(std::uint64_t num_rows, std::uint64_t num_positions) {
  return (num_rows + kLoadRows) * num_positions;
}
std::uint64_t cost(const AttentionWork& work) { return cost(work.num_rows, work.num_positions); }

std::uint32_t group_heads(const AttentionPlanLimits& limits) {
  return limits.num_heads / limits.num_kv_heads;
}
std::uint32_t queries_per_block(const AttentionPlanLimits& limits) {
  return std::max(1U, kBlockRows / group_heads(limits));
}
std::size_t max_head_groups(const AttentionPlanLimits& limits) {
  return std::size_t{limits.num_kv_heads} * div_ceil(group_heads(limits), kMaxAttentionRows);
}
std::size_t max_row_blocks(const AttentionPlanLimits& limits) {
  return (limits.max_step_tokens / queries_per_block(limits) + limits.max_chunks) *
         max_head_groups(limits);
}
/// Of shared items, each chunk once at each depth.
std::size_t max_shared_members(const AttentionPlanLimits& limits) {
  return std::size_t{limits.max_chunks} * kMaxSharedDepth * max_head_groups(limits);
}

std::uint64_t distance(std::uint64_t a, std::uint64_t b) { return a > b ? a - b : b - a; }

}  // namespace

AttentionPlan::AttentionPlan(const AttentionPlanLimits& limits)
    : limits_(limits), block_queries_(queries_per_block(limits)) {
  KVASIR_CHECK(limits.num_threads >= 1);
  KVASIR_CHECK(limits.num_heads % limits.num_kv_heads == 0);
  KVASIR_CHECK(kAttentionRange % limits.block_tokens == 0);
  const std::uint32_t heads = group_heads(limits);
  for (std::uint32_t kv_head = 0; kv_head < limits.num_kv_heads; ++kv_head) {
    for (std::uint32_t first = 0; first < heads; first += kMaxAttentionRows) {
      head_groups_.push_back(
          {kv_head, kv_head * heads + first, std::min(kMaxAttentionRows, heads - first)});
    }
  }
  row_blocks_.reserve(max_row_blocks(limits));
  shared_ranges_.reserve(max_row_blocks(limits));
  small_chunks_.reserve(limits.max_chunks);
  members_.reserve(max_row_blocks(limits) + max_shared_members(limits));
  works_.reserve(max_row_blocks(limits) + max_shared_members(limits));
  cuts_.reserve(limits.num_threads + 1);
}

std::uint64_t AttentionPlan::buffer_bytes(const AttentionPlanLimits& limits) {
  const std::uint64_t blocks = max_row_blocks(limits);
  const std::uint64_t works = blocks + max_shared_members(limits);
  return max_head_groups(limits) * sizeof(HeadGroup) +
         blocks * (sizeof(RowBlock) + sizeof(std::uint32_t)) +
         limits.max_chunks * sizeof(SmallChunk) +
         works * (sizeof(std::size_t) + sizeof(AttentionWork)) +
         (limits.num_threads + 1) * sizeof(Cut);
}

void AttentionPlan::build(const Batch& batch, std::span<const std::uint32_t> first_query) {
  KVASIR_CHECK(batch.chunks.size() <= limits_.max_chunks);
  KVASIR_CHECK(batch.num_tokens <= limits_.max_step_tokens);
  KVASIR_CHECK(first_query.size() == batch.chunks.size());
  row_blocks_.clear();
  shared_ranges_.clear();
  small_chunks_.clear();
  members_.clear();
  works_.clear();
  num_partials_ = 0;
  add_row_blocks(batch, first_query);
  // Neighbours in this order have the longest common prefixes.
  std::sort(small_chunks_.begin(), small_chunks_.end(),
            [](const SmallChunk& a, const SmallChunk& b) {
              return std::lexicographical_compare(a.blocks.begin(), a.blocks.end(),
                                                  b.blocks.begin(), b.blocks.end());
            });
  for (std::size_t i = 0; i + 1 < small_chunks_.size(); ++i) {
    small_chunks_[i].common_with_next = common_ranges(small_chunks_[i], small_chunks_[i + 1]);
  }
  share(0, small_chunks_.size(), 0);
  add_own_work(batch);
  cut_shares();
}

void AttentionPlan::add_row_blocks(const Batch& batch, std::span<const std::uint32_t> first_query) {
  const std::uint32_t heads = group_heads(limits_);
  for (std::uint32_t c = 0; c < batch.chunks.size(); ++c) {
    const BatchChunk& chunk = batch.chunks[c];
    KVASIR_CHECK(first_query[c] <= chunk.num_tokens);
    const std::uint32_t num_queries = chunk.num_tokens - first_query[c];
    if (num_queries == 0) continue;
    // Two of them must fit a task. Where a window has moved on there is little to share, and
    // sequences see different parts of it.
    const std::uint32_t last_position = chunk.first_position + chunk.num_tokens - 1;
    if (std::uint64_t{num_queries} * heads <= kMaxAttentionRows / 2 &&
        first_visible(last_position) == 0) {
      SmallChunk small;
      small.chunk = c;
      small.num_rows = num_queries * heads;
      small.whole_ranges = (chunk.first_position + first_query[c] + 1) / kAttentionRange;
      small.blocks =
          chunk.block_tables[limits_.group].first(small.whole_ranges * table_entries_of_range());
      small.first_row_block = row_blocks_.size();
      if (small.whole_ranges > 0) small_chunks_.push_back(small);
    }
    const std::uint32_t num_blocks = div_ceil(num_queries, block_queries_);
    for (std::uint32_t group = 0; group < head_groups_.size(); ++group) {
      for (std::uint32_t b = 0; b < num_blocks; ++b) {
        // In 64 bits: 65536 queries in as many blocks multiply past 32.
        const auto cut = [&](std::uint32_t i) {
          return first_query[c] +
                 static_cast<std::uint32_t>(std::uint64_t{num_queries} * i / num_blocks);
        };
        const std::uint32_t begin = cut(b), end = cut(b + 1);
        RowBlock block;
        block.chunk = c;
        block.head_group = group;
        block.first_query = begin;
        block.num_queries = end - begin;
        block.first_range = first_visible(chunk.first_position + begin) / kAttentionRange;
        block.end_range = div_ceil(chunk.first_position + end, kAttentionRange);
        row_blocks_.push_back(block);
      }
    }
  }
  shared_ranges_.assign(row_blocks_.size(), 0);
}

/// Small chunks [begin, end) have their ranges before shared_ranges in common; plans what else they
/// share, and then what parts of them do.
void AttentionPlan::share(std::size_t begin, std::size_t end, std::uint32_t depth) {
  if (end - begin < 2 || depth == kMaxSharedDepth) return;
  std::uint32_t common = small_chunks_[begin].common_with_next;
  for (std::size_t i = begin + 1; i + 1 < end; ++i) {
    common = std::min(common, small_chunks_[i].common_with_next);
  }
  const std::uint32_t first_range = small_chunks_[begin].shared_ranges;
  if (common > first_range && sharing_wins(begin, end, common - first_range)) {
    add_shared_work(begin, end, first_range, common);
    ++depth;
  }
  std::size_t part = begin;
  for (std::size_t i = begin; i < end; ++i) {
    if (i + 1 < end && small_chunks_[i].common_with_next > common) continue;
    share(part, i + 1, depth);
    part = i + 1;
  }
}

/// Whether the loads that are saved outweigh the partial results, which every range of the rows
/// needs then.
bool AttentionPlan::sharing_wins(std::size_t begin, std::size_t end,
                                 std::uint32_t num_ranges) const {
  std::uint64_t partials = 0, num_rows = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const RowBlock& block = row_blocks_[small_chunks_[i].first_row_block];
    num_rows += small_chunks_[i].num_rows;
    if (block.first_partial != RowBlock::kNoPartials) continue;
    partials += std::uint64_t{small_chunks_[i].num_rows} * block.num_ranges();
  }
  if (num_partials_ + partials * head_groups_.size() > limits_.max_partials) return false;
  const std::uint64_t num_tasks = (num_rows + kMaxAttentionRows - 1) / kMaxAttentionRows;
  const std::uint64_t loads_saved = end - begin - std::min<std::uint64_t>(num_tasks, end - begin);
  const std::uint64_t gain = loads_saved * kLoadRows * num_ranges * kAttentionRange;
  return gain > partials * kPartialCost;
}

void AttentionPlan::add_shared_work(std::size_t begin, std::size_t end, std::uint32_t first_range,
                                    std::uint32_t end_range) {
  for (std::uint32_t group = 0; group < head_groups_.size(); ++group) {
    AttentionWork work;
    for (std::size_t i = begin; i < end; ++i) {
      SmallChunk& small = small_chunks_[i];
      const std::size_t index = small.first_row_block + group;
      KVASIR_CHECK(give_partials(row_blocks_[index]));
      shared_ranges_[index] = end_range;
      small.shared_ranges = end_range;
      if (work.num_rows == 0 || work.num_rows + small.num_rows > kMaxAttentionRows) {
        if (work.num_rows > 0) works_.push_back(work);
        work = {};
        work.first_member = static_cast<std::uint32_t>(members_.size());
        work.first_range = first_range;
        work.end_range = end_range;
        work.num_positions = (end_range - first_range) * kAttentionRange;
      }
      members_.push_back(index);
      ++work.num_members;
      work.num_rows += small.num_rows;
    }
    works_.push_back(work);
  }
}

void AttentionPlan::add_own_work(const Batch& batch) {
  for (std::size_t b = 0; b < row_blocks_.size(); ++b) {
    const RowBlock& block = row_blocks_[b];
    if (shared_ranges_[b] == block.end_range) continue;
    const std::uint32_t first_position =
        batch.chunks[block.chunk].first_position + block.first_query;
    AttentionWork work;
    work.first_member = static_cast<std::uint32_t>(members_.size());
    work.num_members = 1;
    work.first_range = std::max(block.first_range, shared_ranges_[b]);
    work.end_range = block.end_range;
    work.num_positions =
        first_position + block.num_queries -
        std::max(work.first_range * kAttentionRange, first_visible(first_position));
    work.num_rows = block.num_queries * head_group(block).num_heads;
    members_.push_back(b);
    works_.push_back(work);
  }
}

/// Shares of about equal cost, cut between items or, where that leaves them too unequal, between
/// the ranges of one.
void AttentionPlan::cut_shares() {
  std::uint64_t total = 0;
  for (const AttentionWork& work : works_) total += cost(work);
  cuts_.clear();
  cuts_.push_back({0, works_.empty() ? 0 : works_[0].first_range});
  std::uint64_t before = 0;
  std::size_t i = 0;
  for (std::uint32_t worker = 1; worker < limits_.num_threads; ++worker) {
    const std::uint64_t target = total * worker / limits_.num_threads;
    while (i < works_.size() && before + cost(works_[i]) <= target) before += cost(works_[i++]);
    Cut cut = i == works_.size() ? Cut{i, 0} : cut_at(i, before, target);
    // Never behind the one before, which may have been moved to the end of this item.
    const Cut& last = cuts_.back();
    if (cut.work < last.work || (cut.work == last.work && cut.range < last.range)) cut = last;
    cuts_.push_back(cut);
  }
  cuts_.push_back({works_.size(), 0});
}

/// The cut nearest to `target` in item `index`, which begins at `before` and holds it.
AttentionPlan::Cut AttentionPlan::cut_at(std::size_t index, std::uint64_t before,
                                         std::uint64_t target) {
  const AttentionWork& work = works_[index];
  const std::uint64_t after = before + cost(work);
  const Cut first{index, work.first_range};
  const Cut next{index + 1, index + 1 < works_.size() ? works_[index + 1].first_range : 0};
  const Cut border = target - before <= after - target ? first : next;
  const std::uint64_t border_distance = std::min(target - before, after - target);

  const std::uint64_t range_cost = cost(work.num_rows, kAttentionRange);
  const auto ranges = static_cast<std::uint32_t>((target - before + range_cost / 2) / range_cost);
  if (ranges == 0 || work.first_range + ranges >= work.end_range) return border;
  const std::uint64_t cut_distance = distance(before + ranges * range_cost, target);
  RowBlock& block = row_blocks_[members_[work.first_member]];
  if (block.first_partial == RowBlock::kNoPartials) {
    const std::uint64_t merging = partials_of(block) * kPartialCost / limits_.num_threads;
    if (cut_distance + kCutGain + merging > border_distance || !give_partials(block)) return border;
  }
  return {index, work.first_range + ranges};
}

/// Ranges whose blocks are the same, of those that both see whole.
std::uint32_t AttentionPlan::common_ranges(const SmallChunk& a, const SmallChunk& b) const {
  const std::size_t size = std::min(a.blocks.size(), b.blocks.size());
  const auto end = a.blocks.begin() + static_cast<std::ptrdiff_t>(size);
  const auto differing = std::mismatch(a.blocks.begin(), end, b.blocks.begin()).first;
  const auto common = static_cast<std::uint32_t>(differing - a.blocks.begin());
  return common / static_cast<std::uint32_t>(table_entries_of_range());
}

std::size_t AttentionPlan::table_entries_of_range() const {
  return std::size_t{limits_.blocks_per_stripe} * (kAttentionRange / limits_.block_tokens);
}

std::uint64_t AttentionPlan::partials_of(const RowBlock& block) const {
  return std::uint64_t{block.num_queries} * head_group(block).num_heads * block.num_ranges();
}

/// False if there is no room for them.
bool AttentionPlan::give_partials(RowBlock& block) {
  if (block.first_partial != RowBlock::kNoPartials) return true;
  const std::uint64_t count = partials_of(block);
  if (num_partials_ + count > limits_.max_partials) return false;
  block.first_partial = num_partials_;
  num_partials_ += count;
  return true;
}

}  // namespace kvasir::runtime
