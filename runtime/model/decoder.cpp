// One task runs through all layers on every worker; sync() stands between a phase that writes and
// the next that reads what other workers wrote.
#include "runtime/model/decoder.h"

#include "core/check.h"
#include "runtime/kernels/float_panels.h"
#include "runtime/kernels/panels.h"
#include "runtime/model/kv_element.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace kvasir::runtime {
namespace {

std::uint32_t context_of(const DecoderLimits& limits, const ModelConfig& config) {
  return limits.max_context_tokens == 0 ? config.context_tokens : limits.max_context_tokens;
}

std::uint32_t query_width(const ModelConfig& config) { return config.num_heads * config.head_dim; }

std::uint32_t kv_width(const ModelConfig& config) { return config.num_kv_heads * config.head_dim; }

AttentionLimits attention_limits(const DecoderLimits& limits, const ModelConfig& config) {
  return {.num_threads = limits.num_threads,
          .max_step_tokens = limits.max_step_tokens,
          .max_chunks = limits.max_chunks,
          .max_context_tokens = context_of(limits, config)};
}

bool reads_int8(const WeightMatrix& matrix) { return matrix.layout == WeightLayout::kPanels; }

std::size_t rope_dims(const ModelConfig& config) {
  std::size_t dims = 0;
  for (const LayerKind& kind : config.layer_kinds)
    dims = std::max<std::size_t>(dims, kind.rope.dims);
  return dims;
}

const float* bias_or_null(const std::vector<float>& bias) {
  return bias.empty() ? nullptr : bias.data();
}

}  // namespace

Decoder::Strides::Strides(const ModelConfig& config, const ModelWeights& weights,
                          const KernelTable& kernels)
    : width(padded_floats(config.width)),
      query(padded_floats(query_width(config))),
      kv(padded_floats(kv_width(config))),
      rope(padded_floats(rope_dims(config))),
      vocab(padded_floats(config.vocab_size)),
      ffn_rows(0),
      quantized(std::max(kernels.quant->quantized_row_bytes(config.width),
                         kernels.quant->quantized_row_bytes(query_width(config)))),
      ffn_quantized(0),
      scratch_bytes(std::max({linear_scratch_bytes(kernels, config.width),
                              linear_scratch_bytes(kernels, query_width(config)),
                              linear_scratch_bytes(kernels, config.ffn_width)})) {
  for (const LayerWeights& layer : weights.layers) {
    if (reads_int8(layer.ffn_down)) {
      ffn_quantized = kernels.quant->quantized_row_bytes(config.ffn_width);
    } else {
      ffn_rows = padded_floats(config.ffn_width);
    }
  }
}

Decoder::Decoder(const DecoderLimits& limits, const ModelConfig& config,
                 const ModelWeights& weights, const KernelTable& kernels,
                 kvcache::KvStorage& storage, WorkerTeam& team)
    : limits_(limits),
      config_(config),
      weights_(weights),
      kernels_(kernels),
      storage_(storage),
      team_(team),
      tables_(storage.geometry()),
      attention_(attention_limits(limits, config), config, kernels, storage),
      strides_(config, weights, kernels),
      memory_(memory_bytes(limits, config, strides_)) {
  KVASIR_CHECK(team.num_threads() == limits.num_threads);
  KVASIR_CHECK(config.num_heads % config.num_kv_heads == 0);
  const std::size_t tokens = limits.max_step_tokens;
  layout_.reserve(limits.max_step_tokens, limits.max_chunks);
  for (std::span<float>* rows : {&x_, &normed_}) {
    *rows = memory_.take<float>(tokens * strides_.width);
  }
  for (std::span<float>* rows : {&query_, &attended_}) {
    *rows = memory_.take<float>(tokens * strides_.query);
  }
  for (std::span<float>* rows : {&key_, &value_}) *rows = memory_.take<float>(tokens * strides_.kv);
  for (std::span<float>* rows : {&cosines_, &sines_}) {
    *rows = memory_.take<float>(config.layer_kinds.size() * tokens * strides_.rope);
  }
  quantized_ = memory_.take<std::byte>(tokens * strides_.quantized);
  gated_ = memory_.take<float>(tokens * strides_.ffn_rows);
  gated_quantized_ = memory_.take<std::byte>(tokens * strides_.ffn_quantized);
  workspaces_.resize(limits.num_threads);
  for (Workspace& workspace : workspaces_) {
    workspace.scratch = memory_.take<std::byte>(strides_.scratch_bytes);
    workspace.own_rows = memory_.take<float>(kOwnRows * strides_.width);
    workspace.own_quantized = memory_.take<std::byte>(kOwnRows * strides_.quantized);
    workspace.gate = memory_.take<float>(tokens * kPanelRows);
    workspace.up = memory_.take<float>(tokens * kPanelRows);
  }
  logits_ = memory_.take<float>(limits.max_logits_rows * strides_.vocab);
  KVASIR_CHECK(memory_.used_bytes() == memory_bytes(limits, config, strides_));
}

/// The sum of what the constructor takes.
std::uint64_t Decoder::memory_bytes(const DecoderLimits& limits, const ModelConfig& config,
                                    const Strides& strides) {
  const std::uint64_t tokens = limits.max_step_tokens;
  const auto floats = [](std::uint64_t count) { return StepMemory::bytes_of<float>(count); };
  const auto bytes = [](std::uint64_t count) { return StepMemory::bytes_of<std::byte>(count); };
  const std::uint64_t worker_bytes =
      bytes(strides.scratch_bytes) + floats(kOwnRows * strides.width) +
      bytes(kOwnRows * strides.quantized) + 2 * floats(tokens * kPanelRows);
  return 2 * (floats(tokens * strides.width) + floats(tokens * strides.query) +
              floats(tokens * strides.kv) +
              floats(config.layer_kinds.size() * tokens * strides.rope)) +
         bytes(tokens * strides.quantized) + floats(tokens * strides.ffn_rows) +
         bytes(tokens * strides.ffn_quantized) + limits.num_threads * worker_bytes +
         floats(limits.max_logits_rows * strides.vocab);
}

std::uint64_t Decoder::buffer_bytes(const DecoderLimits& limits, const ModelConfig& config,
                                    const ModelWeights& weights, const KernelTable& kernels) {
  return memory_bytes(limits, config, Strides(config, weights, kernels)) +
         LayerTables::bytes(config.num_layers) +
         limits.max_step_tokens * (sizeof(StepToken) + sizeof(std::uint32_t)) +
         limits.max_chunks * 3 * sizeof(std::uint32_t) +
         AttentionStep::buffer_bytes(attention_limits(limits, config), config, kernels);
}

void Decoder::forward(const Batch& batch, std::span<const std::uint32_t> wanted) {
  batch_ = &batch;
  layout_.build(batch, wanted);
  num_rows_ = layout_.tokens.size();
  attention_.plan(batch, layout_.chunk_first_token, layout_.chunk_first_query);
  team_.run([this](std::uint32_t worker) { run_layers(worker); });
  batch_ = nullptr;
}

void Decoder::head(std::size_t first, std::size_t count) {
  KVASIR_CHECK(first + count <= layout_.wanted.size());
  KVASIR_CHECK(count <= limits_.max_logits_rows);
  team_.run([&](std::uint32_t worker) {
    const WorkShare share = share_of(count, worker);
    const WeightMatrix* const readers[] = {&weights_.output_head};
    const LinearInput x = normed_rows(weights_.output_norm, first, readers, share);
    const Product product{&weights_.output_head, logits_.data(), strides_.vocab};
    multiply_share({&product, 1}, x, {}, share);
  });
  if (!tap_) return;
  std::vector<float> normed(config_.width);
  for (std::size_t row = first; row < first + count; ++row) {
    kernels_.rms_norm(&x_[row * strides_.width], weights_.output_norm.data(), normed.data(),
                      config_.width, config_.rms_epsilon);
    tap_("output_norm", layout_.wanted[row], normed);
  }
}

std::span<const float> Decoder::logits(std::size_t row) const {
  KVASIR_CHECK(row < limits_.max_logits_rows);
  return {&logits_[row * strides_.vocab], config_.vocab_size};
}

void Decoder::run_layers(std::uint32_t worker) {
  WorkShare share = share_of(num_rows_, worker);
  embed(share);
  for (std::uint32_t layer = 0; layer < config_.num_layers; ++layer) {
    if (!attention_block(layer, share)) return;
    ffn_block(layer, share);
    if (tap_ && worker == 0) {
      tap_tokens("block " + std::to_string(layer) + " output", x_, strides_.width);
    }
  }
}

/// Taps see all rows from worker 0, so they need workers that meet after every product.
WorkShare Decoder::share_of(std::size_t num_rows, std::uint32_t worker) const {
  return tap_ ? column_share(num_rows, worker, limits_.num_threads)
              : work_share(num_rows, worker, limits_.num_threads);
}

/// Between two phases that share rows with other workers.
void Decoder::sync_rows(const WorkShare& share) {
  if (share.parts > 1) team_.sync();
}

/// Residual stream and rotation angles of every token.
void Decoder::embed(const WorkShare& share) {
  const float scale = config_.embedding_scale();
  for_own_rows(share, [&](std::size_t t) {
    const StepToken& token = layout_.tokens[t];
    float* x = &x_[t * strides_.width];
    load_embedding(token.token, x, share.worker);
    if (scale != 1.0F) std::for_each_n(x, config_.width, [&](float& value) { value *= scale; });
    for (std::size_t kind = 0; kind < config_.layer_kinds.size(); ++kind) {
      const std::size_t row = angles_row(kind, t);
      make_angles(token.position, config_.layer_kinds[kind].rope, &cosines_[row], &sines_[row]);
    }
  });
  sync_rows(share);
  if (tap_ && share.worker == 0) tap_tokens("embedding", x_, strides_.width);
}

/// Angles are taken in double, so that they are as good at position 100 000 as at 1.
void Decoder::make_angles(std::uint32_t position, const RopeConfig& rope, float* cosines,
                          float* sines) {
  const bool adjacent = rope.pairs == RopePairs::kAdjacent;
  for (std::size_t i = 0; i < rope.dims / 2; ++i) {
    const double angle = position * rope.inverse_frequency[i];
    const std::size_t first = adjacent ? 2 * i : i;
    const std::size_t second = first + (adjacent ? 1 : rope.dims / 2);
    cosines[first] = cosines[second] = static_cast<float>(std::cos(angle) * rope.magnitude);
    sines[second] = static_cast<float>(std::sin(angle) * rope.magnitude);
    sines[first] = -sines[second];
  }
}

void Decoder::load_embedding(TokenId token, float* x, std::uint32_t worker) {
  const WeightMatrix& table = weights_.token_embedding;
  const std::size_t panel = token / kPanelRows;
  const std::uint32_t row = token % kPanelRows;
  switch (table.layout) {
    case WeightLayout::kPanels:
      return unpack_row(table.type, table.data + panel * panel_bytes(table.type, table.cols), row,
                        config_.width, x);
    case WeightLayout::kFloatPanels: {
      // The row as in the file, in this worker's own memory; then as any other row.
      auto* elements = reinterpret_cast<std::byte*>(workspaces_[worker].own_rows.data());
      unpack_float_row(table.type, table.data + panel * float_panel_bytes(table.type, table.cols),
                       row, config_.width, elements);
      return kernels_.dequantize(table.type, elements, x, config_.width);
    }
    case WeightLayout::kRows:
      break;
  }
  kernels_.dequantize(table.type, table.data + token * table.row_bytes, x, config_.width);
}

/// False when nothing is left to compute: the last layer of a step that wants no hidden state. The
/// last layer drops rows that are not wanted; `share` is then of those that are left.
bool Decoder::attention_block(std::uint32_t layer, WorkShare& share) {
  const LayerWeights& w = weights_.layers[layer];
  const WeightMatrix* const readers[] = {&w.query, &w.key, &w.value};
  const LinearInput x = normed_rows(w.attention_norm, 0, readers, share);
  const Product products[] = {{&w.query, query_.data(), strides_.query, bias_or_null(w.query_bias)},
                              {&w.key, key_.data(), strides_.kv, bias_or_null(w.key_bias)},
                              {&w.value, value_.data(), strides_.kv, bias_or_null(w.value_bias)}};
  multiply_share(products, x, first_unit(w.attention_output, share), share);
  sync_rows(share);
  const bool drops_rows = layer + 1 == config_.num_layers && !layout_.all_wanted();
  // Before the sync that lets the others attend.
  if (drops_rows && share.worker == 0) {
    attention_.plan(*batch_, layout_.chunk_first_token, layout_.chunk_first_wanted);
  }
  rotate_and_store(layer, share);
  team_.sync();  // rows read the K and V of others
  if (drops_rows && layout_.wanted.empty()) return false;
  attend(layer, share.worker);
  if (drops_rows) keep_wanted_rows(share);

  const LinearInput attended = attended_rows(w.attention_output, share);
  if (tap_ && layer == 0 && share.worker == 0) tap_projection(attended, w);
  add_to_stream({w.attention_output, bias_or_null(w.attention_output_bias), w.post_attention_norm},
                attended, first_unit(w.ffn_gate, share), share);
  return true;
}

void Decoder::ffn_block(std::uint32_t layer, const WorkShare& share) {
  const LayerWeights& w = weights_.layers[layer];
  const WeightMatrix* const readers[] = {&w.ffn_gate, &w.ffn_up};
  ffn_strips(w, normed_rows(w.ffn_norm, 0, readers, share), share);
  sync_rows(share);
  LinearInput gated{.rows = gated_.data(),
                    .stride = strides_.ffn_rows,
                    .quantized = gated_quantized_.data(),
                    .quantized_stride = strides_.ffn_quantized,
                    .num_rows = share.num_rows()};
  skip_rows(gated, share.rows.begin);
  add_to_stream({w.ffn_down, nullptr, w.post_ffn_norm}, gated, first_unit_after(layer, share),
                share);
}

/// Gate and up of 32 inner columns at a time, so that their products stay in this core's cache and
/// only the activated, quantised columns are written.
void Decoder::ffn_strips(const LayerWeights& w, const LinearInput& x, const WorkShare& share) {
  Workspace& workspace = workspaces_[share.worker];
  const WorkRange strips = share.units(num_units(w.ffn_gate));
  for (std::size_t strip = strips.begin; strip < strips.end; ++strip) {
    const auto first_row = static_cast<std::uint32_t>(strip * kPanelRows);
    const LinearOutput gate{
        .y = workspace.gate.data(), .stride = kPanelRows, .first_row = first_row};
    const LinearOutput up{.y = workspace.up.data(), .stride = kPanelRows, .first_row = first_row};
    multiply(kernels_, w.ffn_gate, {strip, strip + 1}, x, gate, workspace.scratch.data(),
             {&w.ffn_up, strip});
    multiply(
        kernels_, w.ffn_up, {strip, strip + 1}, x, up, workspace.scratch.data(),
        strip + 1 == strips.end ? first_unit(w.ffn_down, share) : NextUnit{&w.ffn_gate, strip + 1});
    finish_strip(w, strip, share);
  }
}

void Decoder::finish_strip(const LayerWeights& w, std::size_t strip, const WorkShare& share) {
  const Workspace& workspace = workspaces_[share.worker];
  if (reads_int8(w.ffn_down)) {
    const auto multiply_quantize = family_traits(config_.family).activation == Activation::kSilu
                                       ? kernels_.quant->silu_multiply_quantize
                                       : kernels_.quant->gelu_multiply_quantize;
    multiply_quantize(workspace.gate.data(), workspace.up.data(), kPanelRows, share.num_rows(),
                      &gated_quantized_[share.rows.begin * strides_.ffn_quantized],
                      strides_.ffn_quantized, config_.ffn_width, static_cast<std::uint32_t>(strip));
    return;
  }
  const std::size_t column = strip * kPanelRows;
  const std::size_t columns = std::min<std::size_t>(kPanelRows, config_.ffn_width - column);
  const auto gate_multiply = family_traits(config_.family).activation == Activation::kSilu
                                 ? kernels_.silu_multiply
                                 : kernels_.gelu_multiply;
  for (std::size_t row = 0; row < share.num_rows(); ++row) {
    gate_multiply(&workspace.gate[row * kPanelRows], &workspace.up[row * kPanelRows],
                  &gated_[(share.rows.begin + row) * strides_.ffn_rows + column], columns);
  }
}

void Decoder::rotate_and_store(std::uint32_t layer, const WorkShare& share) {
  const LayerWeights& w = weights_.layers[layer];
  const std::uint32_t block_tokens = storage_.geometry().block_tokens;
  const std::uint32_t layer_in_block = tables_.layer_in_block(layer);
  const KvElement element = kv_element(storage_.geometry().type);
  for_own_rows(share, [&](std::size_t t) {
    const StepToken& token = layout_.tokens[t];
    rotate_heads(layer, t, &query_[t * strides_.query], config_.num_heads, w.query_norm);
    rotate_heads(layer, t, &key_[t * strides_.kv], config_.num_kv_heads, w.key_norm);
    const BlockId block =
        tables_.block(layer, batch_->chunks[token.chunk], token.position / block_tokens);
    for (std::uint32_t head = 0; head < config_.num_kv_heads; ++head) {
      const std::size_t at = t * strides_.kv + std::size_t{head} * config_.head_dim;
      kernels_.store_kv(element, &key_[at], &value_[at],
                        storage_.k_tile(layer_in_block, block, head),
                        storage_.v_tile(layer_in_block, block, head), config_.head_dim,
                        block_tokens, token.position % block_tokens);
    }
  });
}

/// Norms each head of a token, where the family does, and rotates it.
void Decoder::rotate_heads(std::uint32_t layer, std::size_t token, float* heads,
                           std::uint32_t num_heads, const std::vector<float>& norm) const {
  const std::size_t kind = config_.kind_index(layer);
  const RopeConfig& rope = config_.layer_kinds[kind].rope;
  const auto rotate =
      rope.pairs == RopePairs::kAdjacent ? kernels_.rope_adjacent : kernels_.rope_halves;
  const std::size_t angles = angles_row(kind, token);
  for (std::size_t i = 0; i < num_heads; ++i) {
    float* head = heads + i * config_.head_dim;
    if (!norm.empty()) {
      kernels_.rms_norm(head, norm.data(), head, config_.head_dim, config_.rms_epsilon);
    }
    rotate(head, &cosines_[angles], &sines_[angles], rope.dims);
  }
}

void Decoder::attend(std::uint32_t layer, std::uint32_t worker) {
  // Asked before the sync: after it, worker 0 may already plan anew.
  const bool needs_merge = attention_.needs_merge(layer);
  attention_.attend(layer, query_.data(), strides_.query, attended_.data(), strides_.query, worker);
  team_.sync();
  if (!needs_merge) return;
  attention_.merge(layer, attended_.data(), strides_.query, worker);
  team_.sync();
}

/// Moves the rows that are still wanted to the front. They are few: one worker does it.
void Decoder::keep_wanted_rows(WorkShare& share) {
  if (share.worker == 0) {
    for (std::size_t row = 0; row < layout_.wanted.size(); ++row) {
      const std::size_t from = layout_.wanted[row];
      if (from == row) continue;
      std::copy_n(&x_[from * strides_.width], config_.width, &x_[row * strides_.width]);
      std::copy_n(&attended_[from * strides_.query], query_width(config_),
                  &attended_[row * strides_.query]);
    }
    num_rows_ = layout_.wanted.size();
  }
  team_.sync();
  share = share_of(layout_.wanted.size(), share.worker);
}

void Decoder::add_to_stream(const Addition& addition, const LinearInput& x, const NextUnit& next,
                            const WorkShare& share) {
  const bool is_normed = !addition.norm.empty();
  // What is to be normed first goes where the input of the block's first product was.
  const Product product{&addition.matrix, is_normed ? normed_.data() : x_.data(), strides_.width,
                        addition.bias, !is_normed};
  multiply_share({&product, 1}, x, next, share);
  sync_rows(share);
  if (!is_normed) return;
  for_own_rows(share, [&](std::size_t row) {
    float* y = &normed_[row * strides_.width];
    kernels_.rms_norm(y, addition.norm.data(), y, config_.width, config_.rms_epsilon);
    kernels_.add(&x_[row * strides_.width], y, config_.width);
  });
  sync_rows(share);
}

LinearInput Decoder::normed_rows(const std::vector<float>& weight, std::size_t first_row,
                                 std::span<const WeightMatrix* const> readers,
                                 const WorkShare& share) {
  const bool any_int8 = std::any_of(readers.begin(), readers.end(),
                                    [](const WeightMatrix* reader) { return reads_int8(*reader); });
  LinearInput input{.rows = normed_.data(),
                    .stride = strides_.width,
                    .quantized = quantized_.data(),
                    .quantized_stride = strides_.quantized,
                    .num_rows = share.num_rows()};
  prepare_rows(share, input, [&](std::size_t row, float* normed, std::byte* quantized) {
    kernels_.rms_norm(&x_[(first_row + row) * strides_.width], weight.data(), normed, config_.width,
                      config_.rms_epsilon);
    if (any_int8) kernels_.quant->quantize_row(normed, config_.width, quantized);
  });
  return input;
}

LinearInput Decoder::attended_rows(const WeightMatrix& reader, const WorkShare& share) {
  LinearInput input{.rows = attended_.data(),
                    .stride = strides_.query,
                    .quantized = quantized_.data(),
                    .quantized_stride = strides_.quantized,
                    .num_rows = share.num_rows()};
  if (!reads_int8(reader)) {
    skip_rows(input, share.rows.begin);
    return input;
  }
  prepare_rows(share, input, [&](std::size_t row, float* /*rows*/, std::byte* quantized) {
    kernels_.quant->quantize_row(&attended_[row * strides_.query], reader.cols, quantized);
  });
  return input;
}

void Decoder::skip_rows(LinearInput& input, std::size_t num_rows) {
  if (input.rows != nullptr) input.rows += num_rows * input.stride;
  if (input.quantized != nullptr) input.quantized += num_rows * input.quantized_stride;
}

void Decoder::multiply_share(std::span<const Product> products, const LinearInput& x,
                             const NextUnit& next, const WorkShare& share) {
  std::size_t total = 0;
  for (const Product& product : products) total += num_units(*product.matrix);
  const WorkRange all = share.units(total);
  std::size_t offset = 0;
  for (std::size_t i = 0; i < products.size(); ++i) {
    const Product& product = products[i];
    const std::size_t end = offset + num_units(*product.matrix);
    const WorkRange units{std::clamp(all.begin, offset, end) - offset,
                          std::clamp(all.end, offset, end) - offset};
    const bool goes_on = all.end > end && i + 1 < products.size();
    multiply(kernels_, *product.matrix, units, x,
             {.y = product.y + share.rows.begin * product.stride,
              .stride = product.stride,
              .bias = product.bias,
              .accumulate = product.accumulate},
             workspaces_[share.worker].scratch.data(),
             goes_on ? NextUnit{products[i + 1].matrix, 0} : next);
    offset = end;
  }
}

NextUnit Decoder::first_unit(const WeightMatrix& matrix, const WorkShare& share) {
  const WorkRange units = share.units(num_units(matrix));
  return units.begin == units.end ? NextUnit{} : NextUnit{&matrix, units.begin};
}

NextUnit Decoder::first_unit_after(std::uint32_t layer, const WorkShare& share) const {
  if (layer + 1 == config_.num_layers) return first_unit(weights_.output_head, share);
  const LayerWeights& w = weights_.layers[layer + 1];
  std::size_t unit = share.units(num_units(w.query) + num_units(w.key) + num_units(w.value)).begin;
  for (const WeightMatrix* matrix : {&w.query, &w.key, &w.value}) {
    if (unit < num_units(*matrix)) return {matrix, unit};
    unit -= num_units(*matrix);
  }
  return {};  // more workers than units
}

/// Calls task(row) for the rows that this worker prepares.
template <typename Task>
void Decoder::for_own_rows(const WorkShare& share, const Task& task) {
  const WorkRange own = share.own_rows();
  for (std::size_t row = own.begin; row < own.end; ++row) task(row);
}

/// Makes `input` the share's rows, each by task(row, floats, quantised) into the arrays that it
/// names: few rows that others share, each worker makes for itself in memory of its own; of many
/// each makes some.
template <typename Task>
void Decoder::prepare_rows(const WorkShare& share, LinearInput& input, const Task& task) {
  if (share.parts > 1 && share.num_rows() <= kOwnRows) {
    Workspace& workspace = workspaces_[share.worker];
    for (std::size_t i = 0; i < share.num_rows(); ++i) {
      task(share.rows.begin + i, &workspace.own_rows[i * strides_.width],
           &workspace.own_quantized[i * strides_.quantized]);
    }
    input.rows = workspace.own_rows.data();
    input.quantized = workspace.own_quantized.data();
    return;
  }
  for_own_rows(share, [&](std::size_t row) {
    task(row, &normed_[row * strides_.width], &quantized_[row * strides_.quantized]);
  });
  skip_rows(input, share.rows.begin);
  sync_rows(share);
}

/// The projection alone; the way through adds it to the residual stream at once.
void Decoder::tap_projection(const LinearInput& attended, const LayerWeights& w) {
  std::vector<float> projected(num_rows_ * strides_.width);
  multiply(kernels_, w.attention_output, {0, num_units(w.attention_output)}, attended,
           {.y = projected.data(),
            .stride = strides_.width,
            .bias = bias_or_null(w.attention_output_bias)},
           workspaces_[0].scratch.data());
  tap_tokens("block 0 attention output", projected, strides_.width);
}

/// The other workers must not write `rows` before the next sync.
void Decoder::tap_tokens(std::string_view stage, std::span<const float> rows,
                         std::size_t stride) const {
  const bool compact = num_rows_ != layout_.tokens.size();
  for (std::size_t row = 0; row < num_rows_; ++row) {
    const auto token = static_cast<std::uint32_t>(row);
    tap_(stage, compact ? layout_.wanted[row] : token, {&rows[row * stride], config_.width});
  }
}

}  // namespace kvasir::runtime
