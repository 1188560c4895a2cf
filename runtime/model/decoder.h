// The forward pass of the llama and qwen2 families for a whole batch of mixed prefill chunks and
// decode tokens. Each layer stores the K and V of all tokens first, then attends through the block
// tables, reading the stored form only; so no result depends on batch mates, chunk sizes or
// threads. Which tokens are chosen is the sampler's business.
#pragma once

#include "kvcache/kv_storage.h"
#include "runtime/batch.h"
#include "runtime/float_buffer.h"
#include "runtime/kernels/kernel_table.h"
#include "runtime/model/model_config.h"
#include "runtime/model/step_layout.h"
#include "runtime/model/weights.h"
#include "runtime/thread_pool.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace kvasir::runtime {

struct DecoderLimits {
  std::uint32_t num_threads = 1;  // those of the pool
  std::uint32_t max_step_tokens = 0;
  std::uint32_t max_chunks = 0;          // of one step
  std::uint32_t max_logits_rows = 0;     // of one call of head()
  std::uint32_t max_context_tokens = 0;  // 0: what the model allows
};

/// Sees every token's vector at the named stages: "embedding", "block 0 attention output" (before
/// the residual), "block N output", "output_norm" (only tokens whose logits are wanted). For tests.
using HiddenTap =
    std::function<void(std::string_view stage, std::uint32_t token_index, std::span<const float>)>;

class Decoder {
 public:
  /// Everything passed by reference must outlive the decoder.
  Decoder(const DecoderLimits& limits, const ModelConfig& config, const ModelWeights& weights,
          const KernelTable& kernels, kvcache::KvStorage& storage, ThreadPool& pool);

  /// Computes all tokens of the batch and writes their K and V; their last hidden states stay here
  /// for head(). Requires: a batch within the limits, tables that cover it, ids in range
  /// (cpu_executor checks).
  void forward(const Batch& batch);

  /// Raw logits of tokens of the last forward(), by index in batch order. Result:
  /// [token_indices.size()] rows of vocab_size floats, row r at logits(r). Requires: at most
  /// max_logits_rows.
  void head(std::span<const std::uint32_t> token_indices);
  [[nodiscard]] std::span<const float> logits(std::size_t row) const;

  void set_tap(HiddenTap tap) { tap_ = std::move(tap); }

  [[nodiscard]] static std::uint64_t buffer_bytes(const DecoderLimits& limits,
                                                  const ModelConfig& config,
                                                  const KernelTable& kernels);

 private:
  /// One product of a phase: y = matrix * x, then the bias, over the rows that a worker owns.
  struct Product {
    const WeightMatrix* matrix = nullptr;
    const std::vector<float>* bias = nullptr;  // null or empty for none
    const FloatBuffer* x = nullptr;
    std::size_t x_stride = 0;
    FloatBuffer* y = nullptr;
    std::size_t y_stride = 0;
  };

  void embed();
  void attention_block(std::uint32_t layer);
  void ffn_block(const LayerWeights& layer);

  void norm_tokens(const std::vector<float>& weight);
  void rotate_and_store(std::uint32_t layer);
  void attend(std::uint32_t layer);
  void attend_unit(std::uint32_t layer, const AttentionUnit& unit, std::uint32_t worker);
  /// Adds matrix * x to the residual stream, each worker its own rows.
  void add_projection(const WeightMatrix& matrix, const std::vector<float>* bias,
                      const FloatBuffer& x, std::size_t x_stride);

  void multiply_rows(const Product& product, WorkRange rows, std::size_t num_x,
                     std::uint32_t worker);
  void tap_tokens(std::string_view stage, const FloatBuffer& rows, std::size_t stride) const;
  template <typename Task>
  void run_workers(const Task& task);
  template <typename Task>
  void for_each_row(std::size_t num_rows, const Task& task);

  DecoderLimits limits_;
  const ModelConfig& config_;
  const ModelWeights& weights_;
  const KernelTable& kernels_;
  kvcache::KvStorage& storage_;
  ThreadPool& pool_;
  HiddenTap tap_;

  const Batch* batch_ = nullptr;  // during forward() only
  StepLayout layout_;
  std::size_t num_tokens_ = 0;

  // T is max_step_tokens, R is max_logits_rows; strides are padded to 16 floats.
  std::size_t width_stride_, query_stride_, kv_stride_, ffn_stride_, rope_stride_, vocab_stride_;
  FloatBuffer x_;                     // [T, width]: the residual stream
  FloatBuffer normed_;                // [T, width]
  FloatBuffer projected_;             // [T, width]
  FloatBuffer query_, attended_;      // [T, num_heads * head_dim]
  FloatBuffer key_, value_;           // [T, num_kv_heads * head_dim]
  FloatBuffer gate_, up_;             // [T, ffn_width]
  FloatBuffer cosines_, sines_;       // [T, rope dims / 2]
  FloatBuffer head_input_;            // [R, width]
  FloatBuffer logits_;                // [R, vocab_size]
  std::vector<FloatBuffer> scratch_;  // [threads]: for one matmul or one attention unit
  std::vector<std::vector<const std::byte*>>
      tile_pointers_;  // [threads][2 * blocks of the longest context]
};

}  // namespace kvasir::runtime
