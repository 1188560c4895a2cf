#include "runtime/model/decoder.h"

#include "core/check.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace kvasir::runtime {
namespace {

/// Weight rows are split over workers in multiples of this: enough for a kernel's register tile.
constexpr std::size_t kRowGranule = 16;

/// Below so many rows for each worker, waking the others takes longer than the norms and rotations
/// of all rows.
constexpr std::size_t kMinRowsPerWorker = 4;

/// The smallest block that the arena allows: the longest table of a context.
constexpr std::uint32_t kMinBlockTokens = 16;

std::uint32_t context_of(const DecoderLimits& limits, const ModelConfig& config) {
  return limits.max_context_tokens == 0 ? config.context_tokens : limits.max_context_tokens;
}

std::size_t query_width(const ModelConfig& config) {
  return std::size_t{config.num_heads} * config.head_dim;
}

std::size_t kv_width(const ModelConfig& config) {
  return std::size_t{config.num_kv_heads} * config.head_dim;
}

/// Floats of one worker's scratch: the most that any matmul or attention unit asks for.
std::size_t scratch_floats(const ModelConfig& config, const KernelTable& kernels) {
  const auto for_k = [&](std::size_t k) {
    return kernels.matmul_scratch_floats(static_cast<std::uint32_t>(k));
  };
  std::size_t floats =
      std::max({for_k(config.width), for_k(query_width(config)), for_k(config.ffn_width)});
  for (const std::uint32_t block_tokens : {16U, 32U, 64U}) {
    floats = std::max(floats,
                      kernels.attention_scratch_floats(
                          config.head_dim, config.num_heads / config.num_kv_heads, block_tokens));
  }
  return padded_floats(floats);
}

std::size_t table_entries(const DecoderLimits& limits, const ModelConfig& config) {
  return (std::size_t{context_of(limits, config)} + kMinBlockTokens - 1) / kMinBlockTokens;
}

/// The part of [begin, end) that lies in a matrix whose rows start at `offset` among the rows of a
/// phase.
WorkRange rows_within(WorkRange range, std::size_t offset, std::size_t rows) {
  const std::size_t begin = std::clamp(range.begin, offset, offset + rows);
  const std::size_t end = std::clamp(range.end, offset, offset + rows);
  return {begin - offset, end - offset};
}

KvElement kv_element(kvcache::KvType type) { return static_cast<KvElement>(type); }
static_assert(static_cast<int>(KvElement::kF32) == static_cast<int>(kvcache::KvType::kF32));
static_assert(static_cast<int>(KvElement::kF16) == static_cast<int>(kvcache::KvType::kF16));
static_assert(static_cast<int>(KvElement::kBf16) == static_cast<int>(kvcache::KvType::kBf16));

}  // namespace

Decoder::Decoder(const DecoderLimits& limits, const ModelConfig& config,
                 const ModelWeights& weights, const KernelTable& kernels,
                 kvcache::KvStorage& storage, ThreadPool& pool)
    : limits_(limits),
      config_(config),
      weights_(weights),
      kernels_(kernels),
      storage_(storage),
      pool_(pool),
      width_stride_(padded_floats(config.width)),
      query_stride_(padded_floats(query_width(config))),
      kv_stride_(padded_floats(kv_width(config))),
      ffn_stride_(padded_floats(config.ffn_width)),
      rope_stride_(padded_floats(config.rope.dims / 2)),
      vocab_stride_(padded_floats(config.vocab_size)) {
  KVASIR_CHECK(pool.num_threads() == limits.num_threads);
  KVASIR_CHECK(config.num_heads % config.num_kv_heads == 0);
  const std::size_t tokens = limits.max_step_tokens;
  layout_.reserve(limits.max_step_tokens, limits.max_chunks, config.num_kv_heads,
                  limits.num_threads);
  for (FloatBuffer* buffer : {&x_, &normed_, &projected_}) buffer->resize(tokens * width_stride_);
  for (FloatBuffer* buffer : {&query_, &attended_}) buffer->resize(tokens * query_stride_);
  for (FloatBuffer* buffer : {&key_, &value_}) buffer->resize(tokens * kv_stride_);
  for (FloatBuffer* buffer : {&gate_, &up_}) buffer->resize(tokens * ffn_stride_);
  for (FloatBuffer* buffer : {&cosines_, &sines_}) buffer->resize(tokens * rope_stride_);
  head_input_.resize(limits.max_logits_rows * width_stride_);
  logits_.resize(limits.max_logits_rows * vocab_stride_);
  scratch_.resize(limits.num_threads);
  for (FloatBuffer& scratch : scratch_) scratch.resize(scratch_floats(config, kernels));
  tile_pointers_.resize(limits.num_threads);
  for (auto& pointers : tile_pointers_) pointers.resize(2 * table_entries(limits, config));
}

std::uint64_t Decoder::buffer_bytes(const DecoderLimits& limits, const ModelConfig& config,
                                    const KernelTable& kernels) {
  const std::uint64_t floats_per_token =
      3 * padded_floats(config.width) + 2 * padded_floats(query_width(config)) +
      2 * padded_floats(kv_width(config)) + 2 * padded_floats(config.ffn_width) +
      2 * padded_floats(config.rope.dims / 2);
  const std::uint64_t floats_per_row =
      padded_floats(config.width) + padded_floats(config.vocab_size);
  const std::uint64_t layout_bytes =
      limits.max_step_tokens * sizeof(StepToken) + limits.max_chunks * sizeof(std::uint32_t) +
      max_attention_units(limits.max_step_tokens, limits.max_chunks, config.num_kv_heads) *
          sizeof(AttentionUnit) +
      (limits.num_threads + 1) * sizeof(std::size_t);
  const std::uint64_t worker_bytes = scratch_floats(config, kernels) * sizeof(float) +
                                     2 * table_entries(limits, config) * sizeof(const std::byte*);
  return (limits.max_step_tokens * floats_per_token + limits.max_logits_rows * floats_per_row) *
             sizeof(float) +
         layout_bytes + limits.num_threads * worker_bytes;
}

void Decoder::forward(const Batch& batch) {
  batch_ = &batch;
  layout_.build(batch, config_.num_kv_heads, limits_.num_threads);
  num_tokens_ = layout_.tokens.size();
  embed();
  for (std::uint32_t layer = 0; layer < config_.num_layers; ++layer) {
    attention_block(layer);
    ffn_block(weights_.layers[layer]);
    if (tap_) tap_tokens("block " + std::to_string(layer) + " output", x_, width_stride_);
  }
  batch_ = nullptr;
}

void Decoder::head(std::span<const std::uint32_t> token_indices) {
  KVASIR_CHECK(token_indices.size() <= limits_.max_logits_rows);
  for_each_row(token_indices.size(), [&](std::size_t row) {
    kernels_.rms_norm(&x_[token_indices[row] * width_stride_], weights_.output_norm.data(),
                      &head_input_[row * width_stride_], config_.width, config_.rms_epsilon);
  });
  if (tap_) {
    for (std::size_t row = 0; row < token_indices.size(); ++row) {
      tap_("output_norm", token_indices[row], {&head_input_[row * width_stride_], config_.width});
    }
  }
  const Product product{&weights_.output_head, nullptr,  &head_input_,
                        width_stride_,         &logits_, vocab_stride_};
  run_workers([&](std::uint32_t worker) {
    multiply_rows(product,
                  split_range(config_.vocab_size, kRowGranule, worker, limits_.num_threads),
                  token_indices.size(), worker);
  });
}

std::span<const float> Decoder::logits(std::size_t row) const {
  KVASIR_CHECK(row < limits_.max_logits_rows);
  return {&logits_[row * vocab_stride_], config_.vocab_size};
}

/// Residual stream and rotation angles of every token. Angles are taken in double, so that they are
/// as good at position 100 000 as at 1.
void Decoder::embed() {
  const WeightMatrix& table = weights_.token_embedding;
  const RopeConfig& rope = config_.rope;
  for_each_row(num_tokens_, [&](std::size_t t) {
    const StepToken& token = layout_.tokens[t];
    kernels_.dequantize(table.type, table.data + token.token * table.row_bytes,
                        &x_[t * width_stride_], config_.width);
    for (std::size_t i = 0; i < rope.dims / 2; ++i) {
      const double angle = token.position * rope.inverse_frequency[i];
      cosines_[t * rope_stride_ + i] = static_cast<float>(std::cos(angle) * rope.magnitude);
      sines_[t * rope_stride_ + i] = static_cast<float>(std::sin(angle) * rope.magnitude);
    }
  });
  if (tap_) tap_tokens("embedding", x_, width_stride_);
}

void Decoder::attention_block(std::uint32_t layer) {
  const LayerWeights& w = weights_.layers[layer];
  norm_tokens(w.attention_norm);
  const Product products[] = {
      {&w.query, &w.query_bias, &normed_, width_stride_, &query_, query_stride_},
      {&w.key, &w.key_bias, &normed_, width_stride_, &key_, kv_stride_},
      {&w.value, &w.value_bias, &normed_, width_stride_, &value_, kv_stride_}};
  const std::size_t num_rows = query_width(config_) + 2 * kv_width(config_);
  run_workers([&](std::uint32_t worker) {
    const WorkRange range = split_range(num_rows, kRowGranule, worker, limits_.num_threads);
    std::size_t offset = 0;
    for (const Product& product : products) {
      multiply_rows(product, rows_within(range, offset, product.matrix->rows), num_tokens_, worker);
      offset += product.matrix->rows;
    }
  });
  rotate_and_store(layer);
  attend(layer);
  add_projection(w.attention_output, &w.attention_output_bias, attended_, query_stride_);
  if (tap_ && layer == 0) tap_tokens("block 0 attention output", projected_, width_stride_);
}

void Decoder::ffn_block(const LayerWeights& w) {
  norm_tokens(w.ffn_norm);
  const Product gate{&w.ffn_gate, nullptr, &normed_, width_stride_, &gate_, ffn_stride_};
  const Product up{&w.ffn_up, nullptr, &normed_, width_stride_, &up_, ffn_stride_};
  run_workers([&](std::uint32_t worker) {
    const WorkRange rows = split_range(config_.ffn_width, kRowGranule, worker, limits_.num_threads);
    multiply_rows(gate, rows, num_tokens_, worker);
    multiply_rows(up, rows, num_tokens_, worker);
    if (rows.begin == rows.end) return;
    for (std::size_t t = 0; t < num_tokens_; ++t) {
      float* gated = &gate_[t * ffn_stride_ + rows.begin];
      kernels_.silu_multiply(gated, &up_[t * ffn_stride_ + rows.begin], gated,
                             rows.end - rows.begin);
    }
  });
  add_projection(w.ffn_down, nullptr, gate_, ffn_stride_);
}

void Decoder::norm_tokens(const std::vector<float>& weight) {
  for_each_row(num_tokens_, [&](std::size_t t) {
    kernels_.rms_norm(&x_[t * width_stride_], weight.data(), &normed_[t * width_stride_],
                      config_.width, config_.rms_epsilon);
  });
}

void Decoder::rotate_and_store(std::uint32_t layer) {
  const auto rotate =
      config_.rope.pairs == RopePairs::kAdjacent ? kernels_.rope_adjacent : kernels_.rope_halves;
  const std::uint32_t block_tokens = storage_.geometry().block_tokens;
  const KvElement element = kv_element(storage_.geometry().type);
  for_each_row(num_tokens_, [&](std::size_t t) {
    const StepToken& token = layout_.tokens[t];
    const float* cosines = &cosines_[t * rope_stride_];
    const float* sines = &sines_[t * rope_stride_];
    for (std::size_t head = 0; head < config_.num_heads; ++head) {
      rotate(&query_[t * query_stride_ + head * config_.head_dim], cosines, sines,
             config_.rope.dims);
    }
    const BlockId block = batch_->chunks[token.chunk].block_table[token.position / block_tokens];
    for (std::uint32_t head = 0; head < config_.num_kv_heads; ++head) {
      float* key = &key_[t * kv_stride_ + std::size_t{head} * config_.head_dim];
      const float* value = &value_[t * kv_stride_ + std::size_t{head} * config_.head_dim];
      rotate(key, cosines, sines, config_.rope.dims);
      kernels_.store_kv(element, key, value, storage_.k_tile(layer, block, head),
                        storage_.v_tile(layer, block, head), config_.head_dim, block_tokens,
                        token.position % block_tokens);
    }
  });
}

void Decoder::attend(std::uint32_t layer) {
  run_workers([&](std::uint32_t worker) {
    for (std::size_t u = layout_.unit_begin[worker]; u < layout_.unit_begin[worker + 1]; ++u) {
      attend_unit(layer, layout_.units[u], worker);
    }
  });
}

void Decoder::attend_unit(std::uint32_t layer, const AttentionUnit& unit, std::uint32_t worker) {
  const BatchChunk& chunk = batch_->chunks[unit.chunk];
  const std::uint32_t block_tokens = storage_.geometry().block_tokens;
  const std::uint32_t first_position = chunk.first_position + unit.first_query;
  const std::size_t num_blocks =
      (first_position + unit.num_queries + block_tokens - 1) / block_tokens;
  const std::byte** k_tiles = tile_pointers_[worker].data();
  const std::byte** v_tiles = k_tiles + num_blocks;
  for (std::size_t i = 0; i < num_blocks; ++i) {
    k_tiles[i] = storage_.k_tile(layer, chunk.block_table[i], unit.kv_head);
    v_tiles[i] = storage_.v_tile(layer, chunk.block_table[i], unit.kv_head);
  }
  const std::uint32_t group_heads = config_.num_heads / config_.num_kv_heads;
  const std::size_t first_query =
      (layout_.chunk_first_token[unit.chunk] + unit.first_query) * query_stride_ +
      std::size_t{unit.kv_head} * group_heads * config_.head_dim;
  OldAttentionTask task;
  task.element = kv_element(storage_.geometry().type);
  task.k_tiles = k_tiles;
  task.v_tiles = v_tiles;
  task.block_tokens = block_tokens;
  task.head_dim = config_.head_dim;
  task.num_group_heads = group_heads;
  task.first_position = first_position;
  task.num_queries = unit.num_queries;
  task.q = &query_[first_query];
  task.q_stride = query_stride_;
  task.out = &attended_[first_query];
  task.out_stride = query_stride_;
  task.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  task.scratch = scratch_[worker].data();
  kernels_.attention(task);
}

void Decoder::add_projection(const WeightMatrix& matrix, const std::vector<float>* bias,
                             const FloatBuffer& x, std::size_t x_stride) {
  const Product product{&matrix, bias, &x, x_stride, &projected_, width_stride_};
  run_workers([&](std::uint32_t worker) {
    const WorkRange rows = split_range(config_.width, kRowGranule, worker, limits_.num_threads);
    multiply_rows(product, rows, num_tokens_, worker);
    if (rows.begin == rows.end) return;
    for (std::size_t t = 0; t < num_tokens_; ++t) {
      const std::size_t begin = t * width_stride_ + rows.begin;
      kernels_.add(&x_[begin], &projected_[begin], rows.end - rows.begin);
    }
  });
}

void Decoder::multiply_rows(const Product& product, WorkRange rows, std::size_t num_x,
                            std::uint32_t worker) {
  if (rows.begin == rows.end || num_x == 0) return;
  MatmulTask task;
  task.type = product.matrix->type;
  task.weights = product.matrix->data;
  task.row_bytes = product.matrix->row_bytes;
  task.k = product.matrix->cols;
  task.row_begin = static_cast<std::uint32_t>(rows.begin);
  task.row_end = static_cast<std::uint32_t>(rows.end);
  task.x = product.x->data();
  task.x_stride = product.x_stride;
  task.num_x = static_cast<std::uint32_t>(num_x);
  task.y = product.y->data();
  task.y_stride = product.y_stride;
  task.scratch = scratch_[worker].data();
  kernels_.matmul(task);
  if (product.bias == nullptr || product.bias->empty()) return;
  for (std::size_t m = 0; m < num_x; ++m) {
    kernels_.add(product.y->data() + m * product.y_stride + rows.begin,
                 product.bias->data() + rows.begin, rows.end - rows.begin);
  }
}

void Decoder::tap_tokens(std::string_view stage, const FloatBuffer& rows,
                         std::size_t stride) const {
  for (std::size_t t = 0; t < num_tokens_; ++t) {
    tap_(stage, static_cast<std::uint32_t>(t), {&rows[t * stride], config_.width});
  }
}

/// std::ref keeps std::function from allocating: a step allocates nothing.
template <typename Task>
void Decoder::run_workers(const Task& task) {
  pool_.run(std::cref(task));
}

/// task(row) for every row; on the caller alone when there are few. Rows do not touch each other,
/// so who does which changes nothing.
template <typename Task>
void Decoder::for_each_row(std::size_t num_rows, const Task& task) {
  if (num_rows < kMinRowsPerWorker * limits_.num_threads) {
    for (std::size_t row = 0; row < num_rows; ++row) task(row);
    return;
  }
  run_workers([&](std::uint32_t worker) {
    const WorkRange rows = split_range(num_rows, 1, worker, limits_.num_threads);
    for (std::size_t row = rows.begin; row < rows.end; ++row) task(row);
  });
}

}  // namespace kvasir::runtime
