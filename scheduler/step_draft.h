// A step while it is being planned, as a budget: tokens and spare blocks only ever get subtracted,
// and what a preemption gives back is counted at its least. Internal to plan() and its parts.
#pragma once

#include "core/clock.h"
#include "core/step_plan.h"
#include "kvcache/kv_view.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_limits.h"

#include <cstdint>
#include <vector>

namespace kvasir::scheduler {

/// One running sequence while the step is being planned.
struct Runner {
  const Sequence* sequence = nullptr;
  std::uint32_t held_stripes = 0;
  std::uint32_t chunk_tokens = 0;  // 0: not served in this step
  std::uint32_t new_stripes = 0;
  bool gone = false;  // preempted or rejected
};

struct StepDraft {
  StepDraft(const SchedulerState& step_state, const kvcache::KvView& step_kv,
            const StepLimits& step_limits, TimePoint step_now);

  [[nodiscard]] bool past_deadline(const Sequence& sequence) const;
  /// What `tokens` tokens take past `held_stripes` stripes, in stripes.
  [[nodiscard]] std::uint32_t new_stripes(std::uint32_t tokens, std::uint32_t held_stripes) const;
  /// Adds a chunk to the plan. Only the last known token's row is sampled; a chunk that ends before
  /// it wants no logits, but for rows of a prompt that are still to be scored.
  void write_chunk(const Sequence& sequence, Chunk chunk);

  const SchedulerState& state;
  const kvcache::KvView& kv;
  const StepLimits& limits;
  const TimePoint now;
  const std::uint32_t block_tokens;
  const std::uint32_t blocks_per_stripes;  // what one more stripe takes, over all groups

  StepPlan plan;
  std::vector<Runner> runners;    // of state.running, in service order
  std::int64_t spare_blocks = 0;  // free and not kept for an immune sequence
  std::uint32_t tokens_left = 0;
  bool took_blocks_back = false;
  bool has_immune = false;  // then spare_blocks is less what windows share
};

}  // namespace kvasir::scheduler
