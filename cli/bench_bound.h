// The least time that a step can take: the bytes that it must read over the machine's bandwidth, or
// the products that it must compute over the machine's peak, whichever is longer. Pure arithmetic
// over shapes; the machine's figures are measured elsewhere.
#pragma once

#include "kvcache/kv_geometry.h"
#include "runtime/model/weights.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace kvasir::cli {

/// What some matrices cost when they are multiplied with rows.
struct MatrixWork {
  std::uint64_t bytes = 0;       // read once a step, as they lie in memory
  std::uint64_t int8_macs = 0;   // for each row: what lies in panels
  std::uint64_t float_macs = 0;  // for each row: what does not
};

struct ModelWork {
  MatrixWork layers;  // for each token
  MatrixWork head;    // for each row whose logits are wanted
  std::uint64_t kv_bytes_per_token = 0;
};
[[nodiscard]] ModelWork model_work(const runtime::ModelWeights& weights,
                                   const kvcache::KvGeometry& geometry);

struct StepShape {
  std::uint64_t tokens = 0;
  std::uint64_t head_rows = 0;
  std::uint64_t kv_tokens = 0;  // sum over sequences of the positions that are attended to
  friend bool operator==(const StepShape&, const StepShape&) = default;
};

/// Weights, and keys and values of every sequence, each once.
[[nodiscard]] std::uint64_t step_bytes(const ModelWork& work, const StepShape& step);

struct MachineLimits {
  double bytes_per_second = 0.0;
  double int8_ops_per_second = 0.0;   // a multiply-add is two
  double f32_flops_per_second = 0.0;  // likewise
};

struct Bound {
  double seconds = 0.0;  // sum over steps of the longer of the two
  double memory_seconds = 0.0, compute_seconds = 0.0;
  std::string_view name;  // the longer one over all steps: "memory", "int8" or "f32"
};
/// Not counted: attention's own arithmetic, norms, sampling and whatever is between the kernels.
[[nodiscard]] Bound bound_of(const ModelWork& work, std::span<const StepShape> steps,
                             const MachineLimits& limits);

}  // namespace kvasir::cli
