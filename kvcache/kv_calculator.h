// What a KV cache would cost and save for a model that need not be loaded: a pure function from a
// description to bytes, token passes and attention scores, with the formula in words. The bytes are
// those of the formula 2 * layers * KV heads * head_dim * element bytes * tokens; what kvasir would
// charge for them, in blocks, stands beside them. Reading the description is others' work.
#pragma once

#include "core/result.h"
#include "kvcache/kv_geometry.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::kvcache {

/// Bounds of a description; with them no sum here leaves 64 bits.
inline constexpr std::int64_t kMaxPlanLayers = 1024;
inline constexpr std::int64_t kMaxPlanHeads = 1024;
inline constexpr std::int64_t kMaxPlanHeadDim = 1024;
inline constexpr std::int64_t kMaxPlanContext = 1LL << 24U;  // tokens
inline constexpr std::int64_t kMaxPlanBatch = 1LL << 20U;    // sequences
inline constexpr std::int64_t kMaxPlanTokens = 1LL << 20U;   // of a prompt, and generated
/// Bytes of a whole plan, and of a budget: up to here a double holds every integer, and so does
/// every reader of JSON.
inline constexpr std::int64_t kMaxPlanBytes = 1LL << 53U;

/// A model, as far as its cache goes.
struct PlanModel {
  std::string name;                  // "llama-2-7b"; empty: only numbers are known
  std::vector<KvLayerGroup> groups;  // with KV heads as the model has them; equal but for windows
  std::uint32_t query_heads = 0;     // a multiple of the KV heads
  std::uint32_t context_tokens = 0;  // that the model was made for
  std::optional<std::uint64_t> weights_bytes;
  std::string weights_from;  // how they are known; empty where they are not
};

/// Models whose shapes and parameter counts are published: llama-2-7b, ...
[[nodiscard]] std::span<const std::string_view> preset_names();
/// Weights are the published parameters at 2 bytes (f16). Nothing for a name that is not there.
[[nodiscard]] std::optional<PlanModel> preset_model(std::string_view name);

/// So many windowed layers, then so many that see everything, and again: 5:1. The layers left over
/// at the end begin as the others did.
struct WindowPattern {
  std::uint32_t windowed = 1;
  std::uint32_t full = 0;
};
/// "5:1", each part of at most three digits and no needless zero, the first at least 1.
[[nodiscard]] std::optional<WindowPattern> window_pattern_from_text(std::string_view text);

/// All in the bounds above; what is absent has no say.
struct PlanRequest {
  PlanModel model;
  KvType type = KvType::kF16;
  bool grouping = true;                        // false: a KV head for each query head
  std::optional<std::uint32_t> window_tokens;  // in place of the model's own windows; 0: none
  WindowPattern pattern;                       // of window_tokens; by default all layers
  std::uint64_t context_tokens = 1;            // that a sequence keeps
  std::uint64_t batch = 1;                     // sequences of so many tokens each
  std::uint64_t prompt_tokens = 1;
  std::uint64_t new_tokens = 1;
  std::optional<std::uint64_t> budget_bytes;
  std::uint32_t largest_chunk = 512;  // tokens, see KvGeometry
};

/// One layer group; its attention scores are those of one layer and head.
struct PlanGroup {
  KvLayerGroup shape;                    // with the KV heads that are counted
  std::uint64_t kept_tokens = 0;         // of a sequence: min(context, window)
  std::uint64_t bytes_per_token = 0;     // over the group's layers
  std::uint64_t bytes_per_sequence = 0;  // bytes_per_token * kept_tokens
  std::uint64_t attention_scores_with_cache = 0;
  std::uint64_t attention_scores_without_cache = 0;
};

/// What kvasir would take out of its pool: whole blocks, and behind a window room for the largest
/// chunk.
struct PlanCharge {
  std::uint32_t block_tokens = kBlockTokens;
  std::uint32_t largest_chunk = 0;
  std::uint64_t bytes_per_block = 0;
  std::uint64_t blocks_per_sequence = 0;
  std::uint64_t bytes_per_sequence = 0;
  std::uint64_t total_bytes = 0;
  std::optional<std::uint64_t> sequences_in_budget;
};

struct KvPlan {
  PlanRequest asked;
  std::uint32_t num_layers = 0;
  std::uint32_t num_kv_heads = 0;  // counted: all query heads without grouping
  std::uint32_t head_dim = 0;
  std::uint32_t grouping_ratio = 0;  // query heads to the model's KV heads: so many times the bytes
                                     // without grouping
  std::uint64_t bytes_per_token = 0;       // of the next token, while no window is full
  std::uint64_t bytes_per_sequence = 0;    // of context_tokens tokens
  std::uint64_t total_bytes = 0;           // of the batch
  std::optional<double> ratio_to_weights;  // total_bytes to weights_bytes
  std::optional<std::uint64_t> sequences_in_budget;
  std::uint64_t token_passes_with_cache = 0;
  std::uint64_t token_passes_without_cache = 0;
  // Of one layer and head; where windows differ the mean over the layers, rounded down.
  std::uint64_t attention_scores_with_cache = 0;
  std::uint64_t attention_scores_without_cache = 0;
  std::string formula;        // of bytes_per_token: "2 x 32 layers x ... = 524288"
  std::string formula_total;  // of total_bytes: "524288 bytes x 4096 tokens x ... = 2147483648"
  std::vector<PlanGroup> groups;
  PlanCharge charge;
};

/// Errors: kInvalidValue with param "context_tokens" or "batch" where the sum, or what would be
/// charged for it, passes kMaxPlanBytes.
[[nodiscard]] Result<KvPlan> plan_kv(PlanRequest request);

}  // namespace kvasir::kvcache
