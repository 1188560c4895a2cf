// The pool and the engine at one moment, as GET /v1/kv/status and GetStatus show them: one record
// from the engine's published status and the model. How it is written is the doors'.
#pragma once

#include "engine/step_stats.h"
#include "server/answer_facts.h"
#include "server/generate_service.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvasir::server {

/// Layers that attend alike.
struct LayerGroupFacts {
  std::uint64_t layers = 0;
  std::uint64_t window_tokens = 0;
  std::uint64_t kv_heads = 0;
  std::uint64_t head_dim = 0;
  std::uint64_t bytes_per_token = 0;
};
[[nodiscard]] std::span<const FactRow<LayerGroupFacts>> layer_group_rows();

/// What each member means is its row's.
struct KvStatus {
  std::string model;
  std::string readiness;
  bool draining = false;
  std::uint64_t running_sequences = 0;
  std::uint64_t waiting_sequences = 0;
  std::uint64_t retry_after_seconds = 0;
  std::uint64_t context_tokens = 0;
  std::string kernels;
  std::uint64_t num_threads = 0;
  // bytes
  std::uint64_t budget_bytes = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t cached_bytes = 0;
  std::uint64_t reserved_bytes = 0;
  std::uint64_t free_bytes = 0;
  // blocks
  std::uint64_t total_blocks = 0;
  std::uint64_t live_blocks = 0;
  std::uint64_t cached_blocks = 0;
  std::uint64_t reserved_blocks = 0;
  std::uint64_t free_blocks = 0;
  // shape
  std::string kv_type;
  std::uint64_t block_tokens = 0;
  std::uint64_t bytes_per_block = 0;
  std::uint64_t bytes_per_token = 0;
  std::string formula;
  std::vector<LayerGroupFacts> layer_groups;
  // since start
  std::uint64_t taken_blocks_total = 0;
  std::uint64_t returned_blocks_total = 0;
  std::uint64_t window_returned_blocks_total = 0;
  std::uint64_t reclaimed_blocks_total = 0;
  std::uint64_t prefix_query_tokens_total = 0;
  std::uint64_t prefix_hit_tokens_total = 0;
  std::uint64_t prefix_miss_tokens_total = 0;
  std::uint64_t preemptions_total = 0;
  std::uint64_t audited_prefixes_total = 0;
  std::uint64_t audited_tokens_total = 0;
  std::uint64_t audit_mismatches_total = 0;
  std::uint64_t audits_given_up_total = 0;
  std::uint64_t dropped_blocks_total = 0;
  std::uint64_t steps_total = 0;
  std::uint64_t prompt_tokens_total = 0;
  std::uint64_t generation_tokens_total = 0;
  std::uint64_t computed_tokens_total = 0;
  std::uint64_t recomputed_tokens_total = 0;
  std::uint64_t wasted_tokens_total = 0;
  std::uint64_t rejected_total = 0;
  std::uint64_t finished_stop_total = 0;
  std::uint64_t finished_length_total = 0;
  std::uint64_t finished_error_total = 0;
  CauseCounts cancelled_total{};
  double execute_seconds_total = 0.0;
  double step_seconds_total = 0.0;
};
[[nodiscard]] std::span<const FactRow<KvStatus>> kv_status_rows();

[[nodiscard]] KvStatus kv_status(const engine::EngineStatus& now, const ModelInfo& model,
                                 Readiness readiness);
/// Of this moment.
[[nodiscard]] KvStatus kv_status(const GenerateService& service);

}  // namespace kvasir::server
