// The attention of one step: planned once for each layer group, computed in every layer by all
// workers. Which rows go together is attention_plan's business, the arithmetic the kernels'; here
// are the pointers between the two, the scratch and the partial results.
#pragma once

#include "kvcache/kv_storage.h"
#include "runtime/batch.h"
#include "runtime/kernels/kernel_table.h"
#include "runtime/model/attention_plan.h"
#include "runtime/model/layer_tables.h"
#include "runtime/model/model_config.h"
#include "runtime/step_memory.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::runtime {

struct AttentionLimits {
  std::uint32_t num_threads = 1;
  std::uint32_t max_step_tokens = 0;
  std::uint32_t max_chunks = 0;
  std::uint32_t max_context_tokens = 0;  // 0: what the model allows
};

class AttentionStep {
 public:
  /// What is passed by reference must outlive the object.
  AttentionStep(const AttentionLimits& limits, const ModelConfig& config,
                const KernelTable& kernels, const kvcache::KvStorage& storage);
  /// Of the largest step, whatever the size of a block.
  [[nodiscard]] static std::uint64_t buffer_bytes(const AttentionLimits& limits,
                                                  const ModelConfig& config,
                                                  const KernelTable& kernels);

  /// By one thread, before the step's first layer.
  /// Shapes: chunk_first_token [chunks], index of each chunk's first token in the step; first_query
  /// [chunks], queries of a chunk before it are not computed (its num_tokens: none are).
  /// Requires: the batch stays until the step's end.
  void plan(const Batch& batch, std::span<const std::uint32_t> chunk_first_token,
            std::span<const std::uint32_t> first_query);

  /// By every worker once, when K and V of the step's tokens are stored. With needs_merge(layer),
  /// `out` is complete only after merge().
  /// Shapes: query, out [tokens of the step][heads * head_dim], rows strides in floats apart.
  void attend(std::uint32_t layer, const float* query, std::size_t query_stride, float* out,
              std::size_t out_stride, std::uint32_t worker);
  /// Whether some rows were computed in parts: then every worker calls merge() when all have ended
  /// attend(), and all end merge() before the next attend().
  [[nodiscard]] bool needs_merge(std::uint32_t layer) const { return plan_of(layer).needs_merge(); }
  void merge(std::uint32_t layer, float* out, std::size_t out_stride, std::uint32_t worker) const;

 private:
  struct Rows {
    const float* query;
    std::size_t query_stride;
    float* out;
    std::size_t out_stride;
  };
  struct Worker {
    std::span<float> scratch;
    std::vector<const std::byte*> tiles;  // K tiles of a task, then its V tiles
  };

  /// Stripes of a chunk: those before `seen` may be gone.
  struct Stripes {
    std::uint32_t first = 0, seen = 0, end = 0;
  };

  [[nodiscard]] const AttentionPlan& plan_of(std::uint32_t layer) const {
    return plans_[tables_.group(layer)];
  }
  void attend_work(std::uint32_t layer, const AttentionWork& work, const AttentionWork* next,
                   const Rows& rows, Worker& worker);
  [[nodiscard]] std::uint32_t add_rows(const AttentionPlan& plan, const AttentionWork& work,
                                       const Rows& rows, AttentionRow* task_rows) const;
  void look_up_tiles(std::uint32_t layer, const RowBlock& block, const Stripes& stripes,
                     Worker& worker) const;
  [[nodiscard]] const std::byte* first_k_tile(std::uint32_t layer, const AttentionWork& work,
                                              std::uint32_t i) const;
  [[nodiscard]] std::size_t token_of(const RowBlock& block, std::uint32_t query) const;
  [[nodiscard]] std::uint32_t position_of(const RowBlock& block, std::uint32_t query) const;

  const ModelConfig& config_;
  const AttentionKernels& kernels_;
  const kvcache::KvStorage& storage_;
  LayerTables tables_;
  std::vector<AttentionPlan> plans_;  // [groups]
  std::size_t partial_floats_;
  StepMemory memory_;
  /// [max_partials][partial_floats_], in memory_ as the scratch is; of one layer at a time.
  std::span<float> partials_;
  std::vector<Worker> workers_;
  const Batch* batch_ = nullptr;  // of the planned step
  std::vector<std::uint32_t> chunk_first_token_;
};

}  // namespace kvasir::runtime
