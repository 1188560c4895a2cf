// An executor that computes nothing but remembers for every slot of every block what was last
// written there, and checks before each use that a sequence finds exactly its own prefix as far as
// each layer group's window lets it see: no stale, foreign, half-written or returned block.
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

  /// Computes one step of an audit of this text, and says whether what is cached is the same.
  [[nodiscard]] bool audit(SequenceId id, const kvcache::AuditStep& step,
                           std::span<const TokenId> tokens, std::uint64_t cache_salt);
  /// Makes one slot of a block hold what is nobody's.
  void spoil(BlockId block, std::uint32_t slot);
  /// Whatever is neither held nor cached is nonsense from now on.
  void poison_unused();

 private:
  /// [positions + 1]: what the model's state is before each position; the first is before any
  /// token.
  using Prefix = std::vector<std::uint64_t>;
  /// Tokens [first, end) of a sequence, whose tables cover them.
  struct Stretch {
    SequenceId id{};
    std::uint32_t first = 0;
    std::uint32_t end = 0;
  };
  void copy(std::span<const BlockCopy> copies);
  void compute(const Stretch& stretch, const Prefix& prefix);
  void check_seen(const Stretch& stretch, const Prefix& prefix) const;
  void write(const Stretch& stretch, const Prefix* prefix);
  void check_may_write(const Stretch& stretch) const;
  void score(const Chunk& chunk, const scheduler::Sequence& sequence, StepResult& result);
  [[nodiscard]] std::uint64_t read_last_group(SequenceId id, std::uint32_t position) const;
  [[nodiscard]] std::uint64_t& slot(BlockId block, std::uint32_t position);
  [[nodiscard]] std::uint64_t slot(BlockId block, std::uint32_t position) const;
  const Prefix& prefix_of(const scheduler::Sequence& sequence);

  const kvcache::KvCacheManager& kv_;
  const kvcache::KvGeometry& geometry_;
  const std::uint32_t block_tokens_;
  std::vector<std::uint64_t> slots_;  // [num_blocks][block_tokens]
  std::unordered_map<SequenceId, Prefix> prefixes_;
};

}  // namespace kvasir::sim
