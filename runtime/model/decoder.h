// The forward pass of all model families (model_family.h says what sets them apart) for a whole
// batch of mixed prefill chunks and decode tokens. Each layer stores the K and V of all tokens
// first, then attends through the block tables, reading the stored form only; so no result depends
// on batch mates, chunk sizes or threads. Which tokens are chosen is the sampler's business.
#pragma once

#include "kvcache/kv_storage.h"
#include "runtime/batch.h"
#include "runtime/kernels/kernel_table.h"
#include "runtime/model/attention_step.h"
#include "runtime/model/layer_tables.h"
#include "runtime/model/linear.h"
#include "runtime/model/model_config.h"
#include "runtime/model/step_layout.h"
#include "runtime/model/weights.h"
#include "runtime/model/work_share.h"
#include "runtime/step_memory.h"
#include "runtime/worker_team.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace kvasir::runtime {

struct DecoderLimits {
  std::uint32_t num_threads = 1;  // those of the team
  std::uint32_t max_step_tokens = 0;
  std::uint32_t max_chunks = 0;          // of one step
  std::uint32_t max_logits_rows = 0;     // of one call of head()
  std::uint32_t max_context_tokens = 0;  // 0: what the model allows
};

/// Sees every token's vector at the named stages: "embedding", "block 0 attention output" (before
/// norm and residual), "block N output", "output_norm" (only tokens whose logits are wanted). For
/// tests.
using HiddenTap =
    std::function<void(std::string_view stage, std::uint32_t token_index, std::span<const float>)>;

class Decoder {
 public:
  /// Everything passed by reference must outlive the decoder.
  Decoder(const DecoderLimits& limits, const ModelConfig& config, const ModelWeights& weights,
          const KernelTable& kernels, kvcache::KvStorage& storage, WorkerTeam& team);

  /// Computes all tokens of the batch and writes their K and V. `wanted` are the tokens whose last
  /// hidden states stay here for head(): ascending indices in batch order. The last layer computes
  /// nothing but K and V for the others.
  /// Requires: a batch within the limits, tables that cover it, ids in range (cpu_executor checks).
  void forward(const Batch& batch, std::span<const std::uint32_t> wanted);

  /// Raw logits of wanted tokens [first, first + count) of the last forward(): row r of vocab_size
  /// floats at logits(r). Requires: count <= max_logits_rows.
  void head(std::size_t first, std::size_t count);
  [[nodiscard]] std::span<const float> logits(std::size_t row) const;

  void set_tap(HiddenTap tap) { tap_ = std::move(tap); }

  /// Bytes of the buffers for weights laid out as `weights` is.
  [[nodiscard]] static std::uint64_t buffer_bytes(const DecoderLimits& limits,
                                                  const ModelConfig& config,
                                                  const ModelWeights& weights,
                                                  const KernelTable& kernels);

 private:
  /// Below so many rows each worker prepares the input of a product for itself, which takes less
  /// time than waiting for the others' share.
  static constexpr std::size_t kOwnRows = 4;

  /// Sizes of one row of each buffer.
  struct Strides {
    Strides(const ModelConfig& config, const ModelWeights& weights, const KernelTable& kernels);
    std::size_t width, query, kv, rope, vocab;  // floats; rope of one kind of layer
    std::size_t ffn_rows;       // floats; 0 when every ffn_down reads quantised rows
    std::size_t quantized;      // bytes: the input of any product but ffn_down
    std::size_t ffn_quantized;  // bytes; 0 when every ffn_down reads float rows
    std::size_t scratch_bytes;  // of one worker
  };
  /// y = matrix * x (+ bias), or added to y; y is of all rows of the step.
  struct Product {
    const WeightMatrix* matrix = nullptr;
    float* y = nullptr;
    std::size_t stride = 0;
    const float* bias = nullptr;
    bool accumulate = false;
  };
  static std::uint64_t memory_bytes(const DecoderLimits& limits, const ModelConfig& config,
                                    const Strides& strides);

  /// What one worker alone touches.
  struct Workspace {
    std::span<std::byte> scratch;        // for one product
    std::span<float> own_rows;           // [kOwnRows, width]
    std::span<std::byte> own_quantized;  // [kOwnRows, quantized]
    std::span<float> gate, up;           // [T, 32]: a strip of the feed-forward's inner columns
  };

  void run_layers(std::uint32_t worker);
  [[nodiscard]] WorkShare share_of(std::size_t num_rows, std::uint32_t worker) const;
  void sync_rows(const WorkShare& share);
  void embed(const WorkShare& share);
  void load_embedding(TokenId token, float* x, std::uint32_t worker);
  static void make_angles(std::uint32_t position, const RopeConfig& rope, float* cosines,
                          float* sines);
  /// Where a token's angles for one kind of layer are.
  [[nodiscard]] std::size_t angles_row(std::size_t kind, std::size_t token) const {
    return (kind * limits_.max_step_tokens + token) * strides_.rope;
  }
  bool attention_block(std::uint32_t layer, WorkShare& share);
  void ffn_block(std::uint32_t layer, const WorkShare& share);
  void rotate_and_store(std::uint32_t layer, const WorkShare& share);
  void rotate_heads(std::uint32_t layer, std::size_t token, float* heads, std::uint32_t num_heads,
                    const std::vector<float>& norm) const;
  void attend(std::uint32_t layer, std::uint32_t worker);
  void keep_wanted_rows(WorkShare& share);
  void ffn_strips(const LayerWeights& layer, const LinearInput& x, const WorkShare& share);
  void finish_strip(const LayerWeights& layer, std::size_t strip, const WorkShare& share);

  /// The share's rows of the residual stream, counted from `first_row`, normed, in the forms that
  /// `readers` want; ends with all of them ready for this worker.
  LinearInput normed_rows(const std::vector<float>& weight, std::size_t first_row,
                          std::span<const WeightMatrix* const> readers, const WorkShare& share);
  /// The share's rows of what attention gave, in the form that `reader` wants.
  LinearInput attended_rows(const WeightMatrix& reader, const WorkShare& share);
  static void skip_rows(LinearInput& input, std::size_t num_rows);
  /// What a block adds to the residual stream: matrix * x + bias, normed where `norm` is not empty.
  struct Addition {
    const WeightMatrix& matrix;
    const float* bias;  // or null
    const std::vector<float>& norm;
  };
  void add_to_stream(const Addition& addition, const LinearInput& x, const NextUnit& next,
                     const WorkShare& share);
  /// The share's part of several products of one input; `next` is what this worker reads then.
  void multiply_share(std::span<const Product> products, const LinearInput& x, const NextUnit& next,
                      const WorkShare& share);
  /// The first unit of the share's part of a matrix.
  [[nodiscard]] static NextUnit first_unit(const WeightMatrix& matrix, const WorkShare& share);
  /// The same of what follows a layer: the next one's Q, K and V, or the head.
  [[nodiscard]] NextUnit first_unit_after(std::uint32_t layer, const WorkShare& share) const;
  template <typename Task>
  void for_own_rows(const WorkShare& share, const Task& task);
  template <typename Task>
  void prepare_rows(const WorkShare& share, LinearInput& input, const Task& task);
  void tap_projection(const LinearInput& attended, const LayerWeights& layer);
  void tap_tokens(std::string_view stage, std::span<const float> rows, std::size_t stride) const;

  DecoderLimits limits_;
  const ModelConfig& config_;
  const ModelWeights& weights_;
  const KernelTable& kernels_;
  kvcache::KvStorage& storage_;
  WorkerTeam& team_;
  HiddenTap tap_;

  const Batch* batch_ = nullptr;  // during forward() only
  StepLayout layout_;
  LayerTables tables_;
  AttentionStep attention_;
  std::size_t num_rows_ = 0;  // rows of x_ that are still computed

  Strides strides_;
  StepMemory memory_;
  // In it; T is max_step_tokens, R is max_logits_rows.
  std::span<float> x_;                    // [T, width]: the residual stream
  std::span<float> normed_;               // [T, width]
  std::span<std::byte> quantized_;        // [T, quantized]
  std::span<float> query_, attended_;     // [T, num_heads * head_dim]
  std::span<float> key_, value_;          // [T, num_kv_heads * head_dim]
  std::span<float> gated_;                // [T, ffn_width], where ffn_down reads float rows
  std::span<std::byte> gated_quantized_;  // [T, ffn_quantized], where it reads quantised ones
  /// [kinds of layers][T, rope dims]: of each dimension, see rope_adjacent.
  std::span<float> cosines_, sines_;
  std::span<float> logits_;            // [R, vocab_size]
  std::vector<Workspace> workspaces_;  // [threads]
};

}  // namespace kvasir::runtime
