// An executor that computes nothing but remembers for every slot of every block what was last
// written there, and checks before each use that a sequence finds exactly its own prefix: no stale,
// foreign or half-written block.
#pragma once

#include "core/step_plan.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler_state.h"

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvasir::sim {

class ShadowExecutor {
 public:
  explicit ShadowExecutor(const kvcache::KvCacheManager& kv);

  /// Aborts with a message when a slot does not hold what it must.
  [[nodiscard]] StepResult execute(const StepPlan& plan, const scheduler::SchedulerState& state);
  /// Fails half-way: slots of the step are overwritten with nonsense.
  void execute_and_fail(const StepPlan& plan);
  void forget(SequenceId id) { prefixes_.erase(id); }

 private:
  using Prefix = std::vector<std::uint64_t>;  // [positions + 1], the first before any token
  void copy(std::span<const BlockCopy> copies);
  [[nodiscard]] std::uint64_t& slot(std::span<const BlockId> table, std::uint32_t position);
  void score(const Chunk& chunk, const scheduler::Sequence& sequence, StepResult& result);
  const Prefix& prefix_of(const scheduler::Sequence& sequence);
  void check_may_write(const Chunk& chunk, std::span<const BlockId> table) const;

  const kvcache::KvCacheManager& kv_;
  std::uint32_t block_tokens_;
  std::vector<std::uint64_t> slots_;  // [num_blocks][block_tokens]
  std::unordered_map<SequenceId, Prefix> prefixes_;
};

}  // namespace kvasir::sim
