#include "cli/bench_bound.h"

#include <algorithm>

namespace kvasir::cli {
namespace {

void add_matrix(const runtime::WeightMatrix& matrix, MatrixWork& work) {
  const std::uint64_t macs = std::uint64_t{matrix.rows} * matrix.cols;
  work.bytes += matrix.size_bytes();
  (matrix.layout == runtime::WeightLayout::kPanels ? work.int8_macs : work.float_macs) += macs;
}

struct ComputeSeconds {
  double int8 = 0.0, f32 = 0.0;
};

ComputeSeconds compute_seconds(const MatrixWork& work, std::uint64_t rows,
                               const MachineLimits& limits) {
  const double operations_per_mac = 2.0 * static_cast<double>(rows);
  return {
      .int8 = operations_per_mac * static_cast<double>(work.int8_macs) / limits.int8_ops_per_second,
      .f32 =
          operations_per_mac * static_cast<double>(work.float_macs) / limits.f32_flops_per_second};
}

}  // namespace

ModelWork model_work(const runtime::ModelWeights& weights, const kvcache::KvGeometry& geometry) {
  ModelWork work;
  work.kv_bytes_per_token = geometry.bytes_per_token();
  for (const runtime::LayerWeights& layer : weights.layers) {
    for (const runtime::WeightMatrix* matrix :
         {&layer.query, &layer.key, &layer.value, &layer.attention_output, &layer.ffn_gate,
          &layer.ffn_up, &layer.ffn_down}) {
      add_matrix(*matrix, work.layers);
    }
  }
  add_matrix(weights.output_head, work.head);
  return work;
}

std::uint64_t step_bytes(const ModelWork& work, const StepShape& step) {
  return work.layers.bytes + (step.head_rows > 0 ? work.head.bytes : 0) +
         step.kv_tokens * work.kv_bytes_per_token;
}

Bound bound_of(const ModelWork& work, std::span<const StepShape> steps,
               const MachineLimits& limits) {
  Bound bound;
  ComputeSeconds compute;
  for (const StepShape& step : steps) {
    const ComputeSeconds layers = compute_seconds(work.layers, step.tokens, limits);
    const ComputeSeconds head = compute_seconds(work.head, step.head_rows, limits);
    const double memory = static_cast<double>(step_bytes(work, step)) / limits.bytes_per_second;
    const double all = layers.int8 + layers.f32 + head.int8 + head.f32;
    compute.int8 += layers.int8 + head.int8;
    compute.f32 += layers.f32 + head.f32;
    bound.memory_seconds += memory;
    bound.compute_seconds += all;
    bound.seconds += std::max(memory, all);
  }
  const bool memory_counts = bound.memory_seconds >= bound.compute_seconds;
  bound.name = memory_counts ? "memory" : compute.int8 >= compute.f32 ? "int8" : "f32";
  return bound;
}

}  // namespace kvasir::cli
