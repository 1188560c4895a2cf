// The engine's loop under a virtual clock: real planner, real books, shadow executor. It checks the
// invariants of docs/ARCHITECTURE.md after every step and aborts with a message at the first that
// does not hold.
#pragma once

#include "core/clock.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/absorb.h"
#include "scheduler/apply.h"
#include "scheduler/plan.h"
#include "scheduler/scheduler_state.h"
#include "tests/sim/auditor.h"
#include "tests/sim/random.h"
#include "tests/sim/shadow_executor.h"
#include "tests/sim/tally.h"
#include "tests/sim/workload.h"

#include <cstdint>
#include <unordered_map>

namespace kvasir::sim {

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed);
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  /// `load_steps` with arrivals, then none until everything has ended.
  [[nodiscard]] Tally run(std::uint64_t load_steps);

 private:
  struct Live {
    std::uint32_t num_events = 0;
    std::vector<float> prompt_logprobs;  // of the prompt's tokens from the second one on
    std::uint64_t submitted_at_step = 0;
    std::uint64_t progressed_at_step = 0;
  };
  void arrive();
  void cancel_some();
  void cancel_all();
  void step();
  void check_plan(const StepPlan& plan);
  void check_admissions(const StepPlan& plan);
  void check_counts(const StepPlan& plan) const;
  void check_progress(const StepPlan& plan);
  void count(const StepPlan& plan);
  void count_starts(const StepPlan& plan);
  void count_victims(const StepPlan& plan);
  void deliver(const scheduler::StepEvents& events);
  void finish(const scheduler::Finish& finish);
  void check_answer(const scheduler::Finish& finish) const;
  void check_scores(const scheduler::Sequence& sequence, const Live& live);
  void check_receipts() const;
  void check_costs(const scheduler::Sequence& sequence) const;
  void count_end(const scheduler::Sequence& sequence);

  Scenario scenario_;
  Random random_;
  RequestMaker requests_;
  VirtualClock clock_;
  kvcache::KvCacheManager kv_;
  ShadowExecutor executor_;
  Auditor auditor_;
  scheduler::SchedulerState state_;
  std::unordered_map<SequenceId, Live> live_;
  std::uint64_t last_id_ = 0;
  std::int64_t held_by_ended_ = 0;  // blocks that those who ended took, less what they gave back
  Tally tally_;
};

}  // namespace kvasir::sim
