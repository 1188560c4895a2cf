// The whole state of the scheduler: who waits and who runs, both in service order. A plain value:
// copy it, print it, compare plans made from it. Only submit, apply, absorb and the functions below
// change it.
#pragma once

#include "core/clock.h"
#include "core/ids.h"
#include "core/request.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/sequence.h"
#include "scheduler/step_limits.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvasir::scheduler {

/// Counted since the start; the engine publishes them.
struct Totals {
  std::uint64_t steps = 0;          // applied plans
  std::uint64_t prompt_tokens = 0;  // of admitted prompts, cached or not, once each
  std::uint64_t generation_tokens = 0;
  std::uint64_t computed_tokens = 0;
  std::uint64_t recomputed_tokens = 0;
  std::uint64_t prefix_query_tokens = 0;  // known tokens at each admission but of further choices
  std::uint64_t prefix_hit_tokens = 0;    // those of them found in the prefix cache or in what runs
  std::uint64_t preemptions = 0;
  std::uint64_t rejected = 0;  // could never fit; a passed deadline is no rejection
};

/// What a fresh engine believes of the length of an answer. Little: too low costs some
/// recomputation until a dozen answers have ended, too high would leave blocks idle.
inline constexpr std::uint32_t kFirstForecastTokens = 16;

/// The mean length of ended answers, in which each weighs 1/16 when it comes and less with every
/// later one: it follows a change of load within some dozens of answers.
struct AnswerLengths {
  std::uint64_t mean_256ths = std::uint64_t{kFirstForecastTokens} * 256;

  [[nodiscard]] std::uint32_t mean_tokens() const {
    return static_cast<std::uint32_t>(mean_256ths / 256);
  }
  void add(std::uint32_t generated_tokens) {
    mean_256ths = (mean_256ths * 15 + std::uint64_t{generated_tokens} * 256) / 16;
  }
};

struct SchedulerState {
  std::vector<Sequence> running;  // by running_before()
  std::vector<Sequence> waiting;  // by waiting_before()
  std::uint64_t next_arrival = 0;
  std::uint64_t num_turns = 0;  // given so far
  Totals totals;
  AnswerLengths lengths;  // of sequences that have ended, however they did

  [[nodiscard]] bool empty() const { return running.empty() && waiting.empty(); }
  /// Running or waiting; null for an unknown or finished id. Valid until the state changes.
  [[nodiscard]] const Sequence* find(SequenceId id) const;
  /// Of the waiting those that ran before and were preempted.
  [[nodiscard]] std::uint64_t num_preempted() const;
  /// Of one that leaves for good: its length is part of the next forecasts.
  void learn_from(const Sequence& ended);
};

struct Submission {
  SequenceId id{};
  std::shared_ptr<const Request> request;  // prompt_tokens is not empty
};

/// Puts a new sequence into the waiting line and hashes its prompt. What can never fit is rejected
/// by the next plan. Of `limits` only context_tokens is read, 0 being no limit.
void submit(SchedulerState& state, const kvcache::KvView& kv, const StepLimits& limits,
            const Submission& submission, TimePoint now);

/// Takes a waiting or running sequence out at once; its blocks are free when this returns. Between
/// absorb() and plan() only. None for an unknown or finished id. For cancel, disconnect and drain.
[[nodiscard]] std::optional<Sequence> remove(SchedulerState& state, kvcache::KvCacheManager& kv,
                                             SequenceId id);

/// For those that move sequences: the running one of that id. Requires: it runs.
[[nodiscard]] Sequence& running_sequence(SchedulerState& state, SequenceId id);
/// Closes the table of one that leaves the running, and adds what it took and gave back to what the
/// sequence reports.
void give_back_blocks(Sequence& sequence, kvcache::KvCacheManager& kv);

/// One line per sequence, for logs and failing tests.
[[nodiscard]] std::string to_text(const SchedulerState& state);

}  // namespace kvasir::scheduler
