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
#include "tests/sim/random.h"
#include "tests/sim/shadow_executor.h"
#include "tests/sim/workload.h"

#include <cstdint>
#include <unordered_map>

namespace kvasir::sim {

/// What happened, so that a test can see that the hard cases did occur.
struct Tally {
  std::uint64_t steps = 0;
  std::uint64_t submitted = 0;
  std::uint64_t finished_stop = 0;
  std::uint64_t finished_length = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t past_deadline = 0;
  std::uint64_t too_long = 0;
  std::uint64_t failed = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t reserved_admissions = 0;
  std::uint64_t prefix_hit_tokens = 0;
  std::uint64_t computed_tokens = 0;
  std::uint64_t recomputed_tokens = 0;
  std::uint64_t forks = 0;              // of choices of one prompt
  std::uint64_t forks_of_others = 0;    // of any that begin alike
  std::uint64_t steps_of_reserve = 0;   // where every worst case is reserved
  std::uint64_t late_forks = 0;         // from a source that has generated more than one token
  std::uint64_t forks_again = 0;        // of sequences that were preempted
  std::uint64_t cancelled_sharers = 0;  // of a fork group, while others held their blocks
  std::uint64_t copied_blocks = 0;
  std::uint64_t scored_prompts = 0;      // to their end
  std::uint64_t scored_in_parts = 0;     // those of them that were preempted
  std::uint64_t prompts_alone = 0;       // finished without a token to generate
  std::uint64_t crowded_steps = 0;       // with more decodes than step tokens
  std::uint64_t plans_hash = 0;          // of all decisions in order
  std::uint64_t longest_stay_steps = 0;  // of one sequence, from submission to finish

  Tally& operator+=(const Tally& other);
};

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
  void check_plan(const StepPlan& plan) const;
  void check_admissions(const StepPlan& plan) const;
  void check_counts(const StepPlan& plan) const;
  void check_progress(const StepPlan& plan);
  void count(const StepPlan& plan);
  void count_forks(const StepPlan& plan);
  void deliver(const scheduler::StepEvents& events);
  void finish(const scheduler::Finish& finish);
  void check_answer(const scheduler::Finish& finish) const;
  void check_scores(const scheduler::Sequence& sequence, const Live& live);
  void count_end(SequenceId id);

  Scenario scenario_;
  Random random_;
  RequestMaker requests_;
  VirtualClock clock_;
  kvcache::KvCacheManager kv_;
  ShadowExecutor executor_;
  scheduler::SchedulerState state_;
  std::unordered_map<SequenceId, Live> live_;
  std::uint64_t last_id_ = 0;
  Tally tally_;
};

}  // namespace kvasir::sim
