// Counts and durations that the engine publishes after each step; metrics and GetStatus are made
// from these alone.
#pragma once

#include "core/clock.h"
#include "core/step_plan.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvasir::engine {

/// Steps are counted by how many tokens they computed, up to each of these.
inline constexpr std::array<std::uint64_t, 13> kStepTokenBounds = {
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000};

struct EngineStatus {
  // now
  std::uint32_t running_sequences = 0;
  std::uint32_t waiting_sequences = 0;
  std::uint32_t total_blocks = 0;
  std::uint32_t free_blocks = 0;    // unused + reclaimable; an audit's own count as free, since it
                                    // gives them back as soon as anybody wants them
  std::uint32_t live_blocks = 0;    // referenced by a running sequence
  std::uint32_t cached_blocks = 0;  // of the free ones: kept for a later prefix
  std::uint32_t reserved_blocks = 0;  // of the free ones: kept for running sequences' worst case
  std::uint64_t bytes_per_block = 0;
  bool draining = false;
  /// Estimate of when a place in a full queue will be free, for Retry-After; at least 1.
  std::uint32_t retry_after_seconds = 1;
  TimePoint last_progress{};  // end of the last step, or the last time the loop was seen idle
  bool busy = false;  // a step or an audit is running, or sequences are live: last_progress must
                      // then move
  // since start
  std::uint64_t steps_total = 0;
  std::uint64_t prompt_tokens_total = 0;  // of admitted prompts, cached or not, once each
  std::uint64_t generation_tokens_total = 0;
  std::uint64_t computed_tokens_total = 0;
  std::uint64_t recomputed_tokens_total = 0;
  std::uint64_t wasted_tokens_total = 0;  // computed past a stop string
  std::uint64_t prefix_query_tokens_total = 0;
  std::uint64_t prefix_hit_tokens_total = 0;
  std::uint64_t preemptions_total = 0;
  // blocks: see kvcache::KvTotals
  std::uint64_t taken_blocks_total = 0;
  std::uint64_t returned_blocks_total = 0;
  std::uint64_t window_returned_blocks_total = 0;
  std::uint64_t reclaimed_blocks_total = 0;
  // truth check: see engine/truth_check.h
  std::uint64_t audited_prefixes_total = 0;  // recomputed to their end, or to the first difference
  std::uint64_t audited_tokens_total = 0;
  std::uint64_t audit_mismatches_total = 0;
  std::uint64_t audits_given_up_total = 0;  // sampled hits that were not compared to their end
  std::uint64_t dropped_blocks_total = 0;   // thrown out of the cache after a mismatch
  std::uint64_t rejected_total = 0;
  std::uint64_t finished_stop_total = 0;
  std::uint64_t finished_length_total = 0;
  std::uint64_t finished_error_total = 0;
  std::array<std::uint64_t, 6> cancelled_total{};  // by CancelCause
  /// Steps that computed more tokens than the bound before and at most this one; the last entry:
  /// more than all bounds. Their tokens together are computed_tokens_total.
  std::array<std::uint64_t, kStepTokenBounds.size() + 1> steps_by_tokens{};
  Duration execute_time_total{};
  Duration step_time_total{};
};

}  // namespace kvasir::engine
