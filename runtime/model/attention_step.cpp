#include "runtime/model/attention_step.h"

#include "core/check.h"
#include "runtime/model/kv_element.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

namespace kvasir::runtime {
namespace {

/// Room for the partial results of a step: one decode of a model with 9 heads of 64 takes 1.5 MB at
/// 131,072 tokens. Without room rows are not split, and nothing else changes.
constexpr std::uint64_t kMaxPartialBytes = std::uint64_t{8} << 20;
/// The smallest block that the arena allows: the longest table of a context.
constexpr std::uint32_t kMinBlockTokens = 16;

std::uint64_t context_of(const AttentionLimits& limits, const ModelConfig& config) {
  return limits.max_context_tokens == 0 ? config.context_tokens : limits.max_context_tokens;
}

std::uint64_t max_partials(const AttentionLimits& limits, const ModelConfig& config,
                           const KernelTable& kernels) {
  const std::uint64_t ranges = (context_of(limits, config) + kAttentionRange - 1) / kAttentionRange;
  const std::uint64_t bytes =
      kernels.attention_kernels->partial_floats(config.head_dim) * sizeof(float);
  return std::min(kMaxPartialBytes / bytes,
                  std::uint64_t{limits.max_step_tokens} * config.num_heads * ranges);
}

/// Partial results and every worker's scratch.
std::uint64_t memory_bytes(const AttentionLimits& limits, const ModelConfig& config,
                           const KernelTable& kernels) {
  const AttentionKernels& attention = *kernels.attention_kernels;
  return StepMemory::bytes_of<float>(max_partials(limits, config, kernels) *
                                     attention.partial_floats(config.head_dim)) +
         limits.num_threads *
             StepMemory::bytes_of<float>(attention.scratch_floats(config.head_dim));
}

/// K and V tiles of the longest context.
std::size_t max_tiles(const AttentionLimits& limits, const ModelConfig& config) {
  return 2 * ((context_of(limits, config) + kMinBlockTokens - 1) / kMinBlockTokens);
}

AttentionPlanLimits plan_limits(const AttentionLimits& limits, const ModelConfig& config,
                                const KernelTable& kernels, const kvcache::KvGeometry& geometry,
                                std::uint32_t group) {
  AttentionPlanLimits plan;
  plan.num_threads = limits.num_threads;
  plan.max_step_tokens = limits.max_step_tokens;
  plan.max_chunks = limits.max_chunks;
  plan.num_heads = config.num_heads;
  plan.num_kv_heads = config.num_kv_heads;
  plan.block_tokens = geometry.block_tokens;
  plan.max_partials = max_partials(limits, config, kernels);
  plan.group = group;
  plan.blocks_per_stripe = geometry.blocks_per_stripe(group);
  plan.window_tokens = geometry.groups[group].window_tokens;
  return plan;
}

}  // namespace

AttentionStep::AttentionStep(const AttentionLimits& limits, const ModelConfig& config,
                             const KernelTable& kernels, const kvcache::KvStorage& storage)
    : config_(config),
      kernels_(*kernels.attention_kernels),
      storage_(storage),
      tables_(storage.geometry()),
      partial_floats_(kernels_.partial_floats(config.head_dim)),
      memory_(memory_bytes(limits, config, kernels)) {
  const kvcache::KvGeometry& geometry = storage.geometry();
  for (std::uint32_t group = 0; group < geometry.groups.size(); ++group) {
    plans_.emplace_back(plan_limits(limits, config, kernels, geometry, group));
  }
  partials_ = memory_.take<float>(max_partials(limits, config, kernels) * partial_floats_);
  workers_.resize(limits.num_threads);
  for (Worker& worker : workers_) {
    worker.scratch = memory_.take<float>(kernels_.scratch_floats(config.head_dim));
    worker.tiles.resize(max_tiles(limits, config));
  }
  chunk_first_token_.reserve(limits.max_chunks);
}

std::uint64_t AttentionStep::buffer_bytes(const AttentionLimits& limits, const ModelConfig& config,
                                          const KernelTable& kernels) {
  const std::uint64_t tile_bytes = max_tiles(limits, config) * sizeof(const std::byte*);
  const kvcache::KvGeometry geometry = config.kv_geometry(kvcache::KvType::kF32, kMinBlockTokens);
  std::uint64_t plan_bytes = 0;
  for (std::uint32_t group = 0; group < geometry.groups.size(); ++group) {
    plan_bytes += sizeof(AttentionPlan) + AttentionPlan::buffer_bytes(plan_limits(
                                              limits, config, kernels, geometry, group));
  }
  return plan_bytes + memory_bytes(limits, config, kernels) +
         limits.num_threads * (tile_bytes + sizeof(Worker)) +
         limits.max_chunks * sizeof(std::uint32_t) + LayerTables::bytes(config.num_layers);
}

void AttentionStep::plan(const Batch& batch, std::span<const std::uint32_t> chunk_first_token,
                         std::span<const std::uint32_t> first_query) {
  KVASIR_CHECK(chunk_first_token.size() == batch.chunks.size());
  for (AttentionPlan& plan : plans_) plan.build(batch, first_query);
  batch_ = &batch;
  chunk_first_token_.assign(chunk_first_token.begin(), chunk_first_token.end());
}

void AttentionStep::attend(std::uint32_t layer, const float* query, std::size_t query_stride,
                           float* out, std::size_t out_stride, std::uint32_t worker) {
  const Rows rows{query, query_stride, out, out_stride};
  // One behind, so that each item knows what is read after it.
  std::optional<AttentionWork> last;
  plan_of(layer).for_each_work(worker, [&](const AttentionWork& work) {
    if (last) attend_work(layer, *last, &work, rows, workers_[worker]);
    last = work;
  });
  if (last) attend_work(layer, *last, nullptr, rows, workers_[worker]);
}

void AttentionStep::attend_work(std::uint32_t layer, const AttentionWork& work,
                                const AttentionWork* next, const Rows& rows, Worker& worker) {
  const AttentionPlan& plan = plan_of(layer);
  AttentionRow task_rows[kMaxAttentionRows];
  const std::uint32_t num_rows = add_rows(plan, work, rows, task_rows);
  std::uint32_t first_position = task_rows[0].first_position, last_position = 0;
  for (std::uint32_t r = 0; r < num_rows; ++r) {
    first_position = std::min(first_position, task_rows[r].first_position);
    last_position = std::max(last_position, task_rows[r].position);
  }

  // All members have the same blocks in these ranges.
  const std::uint32_t block_tokens = storage_.geometry().block_tokens;
  const std::uint32_t first = work.first_range * (kAttentionRange / block_tokens);
  const std::uint32_t end =
      std::min(work.end_range * (kAttentionRange / block_tokens), last_position / block_tokens + 1);
  look_up_tiles(layer, plan.row_block(work.first_member),
                {first, std::max(first, first_position / block_tokens), end}, worker);

  AttentionTask task;
  task.element = kv_element(storage_.geometry().type);
  task.block_tokens = block_tokens;
  task.head_dim = config_.head_dim;
  task.first_range = work.first_range;
  task.end_range = work.end_range;
  task.k_tiles = worker.tiles.data();
  task.v_tiles = task.k_tiles + (end - first);
  task.rows = task_rows;
  task.num_rows = num_rows;
  task.scale = config_.attention_scale();
  task.scratch = worker.scratch.data();
  if (next != nullptr) {
    for (std::uint32_t i = 0; i < std::size(task.next_tiles); ++i) {
      task.next_tiles[i] = first_k_tile(layer, *next, i);
    }
  }
  kernels_.attend(task);
}

/// The rows of an item's members; returns their number.
std::uint32_t AttentionStep::add_rows(const AttentionPlan& plan, const AttentionWork& work,
                                      const Rows& rows, AttentionRow* task_rows) const {
  std::uint32_t num_rows = 0;
  for (std::uint32_t m = 0; m < work.num_members; ++m) {
    const RowBlock& block = plan.row_block(work.first_member + m);
    const HeadGroup& heads = plan.head_group(block);
    for (std::uint32_t i = 0; i < block.num_queries; ++i) {
      const std::size_t token = token_of(block, i);
      const std::uint32_t position = position_of(block, i);
      for (std::uint32_t h = 0; h < heads.num_heads; ++h) {
        const std::size_t offset = std::size_t{heads.first_head + h} * config_.head_dim;
        KVASIR_CHECK(num_rows < kMaxAttentionRows);
        AttentionRow& row = task_rows[num_rows++];
        row.q = rows.query + token * rows.query_stride + offset;
        row.first_position = plan.first_visible(position);
        row.position = position;
        row.out = rows.out + token * rows.out_stride + offset;
        if (block.first_partial == RowBlock::kNoPartials) continue;
        const std::uint64_t row_index = std::uint64_t{i} * heads.num_heads + h;
        row.partials = partials_.data() +
                       (block.first_partial + row_index * block.num_ranges()) * partial_floats_;
      }
    }
  }
  return num_rows;
}

/// Tiles of the stripes into worker.tiles, K before V; null for those that may be gone.
void AttentionStep::look_up_tiles(std::uint32_t layer, const RowBlock& block,
                                  const Stripes& stripes, Worker& worker) const {
  const BatchChunk& chunk = batch_->chunks[block.chunk];
  const std::uint32_t kv_head = plan_of(layer).head_group(block).kv_head;
  const std::uint32_t layer_in_block = tables_.layer_in_block(layer);
  const std::byte** k_tiles = worker.tiles.data();
  const std::byte** v_tiles = k_tiles + (stripes.end - stripes.first);
  for (std::uint32_t i = stripes.first; i < stripes.end; ++i, ++k_tiles, ++v_tiles) {
    *k_tiles = *v_tiles = nullptr;
    if (i < stripes.seen) continue;
    const BlockId id = tables_.block(layer, chunk, i);
    *k_tiles = storage_.k_tile(layer_in_block, id, kv_head);
    *v_tiles = storage_.v_tile(layer_in_block, id, kv_head);
  }
}

/// K tile `i` of an item, of those that are seen, or null past the end of its table.
const std::byte* AttentionStep::first_k_tile(std::uint32_t layer, const AttentionWork& work,
                                             std::uint32_t i) const {
  const AttentionPlan& plan = plan_of(layer);
  const RowBlock& block = plan.row_block(work.first_member);
  const std::uint32_t block_tokens = storage_.geometry().block_tokens;
  const std::uint32_t first_seen = plan.first_visible(position_of(block, 0)) / block_tokens;
  const std::size_t index =
      std::size_t{std::max(work.first_range * (kAttentionRange / block_tokens), first_seen)} + i;
  const std::size_t last = position_of(block, block.num_queries - 1) / block_tokens;
  if (index > last) return nullptr;
  return storage_.k_tile(tables_.layer_in_block(layer),
                         tables_.block(layer, batch_->chunks[block.chunk], index),
                         plan.head_group(block).kv_head);
}

void AttentionStep::merge(std::uint32_t layer, float* out, std::size_t out_stride,
                          std::uint32_t worker) const {
  const AttentionPlan& plan = plan_of(layer);
  plan.for_each_merge(worker, [&](const RowBlock& block, std::uint32_t row) {
    const HeadGroup& heads = plan.head_group(block);
    const std::uint32_t query = row / heads.num_heads;
    const std::uint32_t head = heads.first_head + row % heads.num_heads;
    const std::uint32_t position = position_of(block, query);
    const std::uint32_t first_range = plan.first_visible(position) / kAttentionRange;
    const float* partials =
        partials_.data() +
        (block.first_partial + std::uint64_t{row} * block.num_ranges()) * partial_floats_;
    kernels_.merge(
        partials, position / kAttentionRange + 1 - first_range, config_.head_dim,
        out + token_of(block, query) * out_stride + std::size_t{head} * config_.head_dim);
  });
}

std::size_t AttentionStep::token_of(const RowBlock& block, std::uint32_t query) const {
  return std::size_t{chunk_first_token_[block.chunk]} + block.first_query + query;
}

std::uint32_t AttentionStep::position_of(const RowBlock& block, std::uint32_t query) const {
  return batch_->chunks[block.chunk].first_position + block.first_query + query;
}

}  // namespace kvasir::runtime
