// Runs a workload on an executor as an engine would, without the engine: which sequence computes
// how many tokens in which step is fixed by the workload, and only the steps are timed. Greedy
// sampling, end tokens ignored, seeded prompts. What the times mean is bench_report.h's.
#pragma once

#include "cli/bench_bound.h"
#include "cli/bench_workload.h"
#include "core/clock.h"
#include "runtime/executor.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace kvasir::cli {

struct BenchSetup {
  runtime::Executor* executor = nullptr;
  const Clock* clock = nullptr;
  std::uint32_t vocab_size = 0;
  std::uint32_t step_tokens = 0;
  std::uint32_t rounds = 5;
  /// Called before the warm-up (0) and before each round (from 1); may be empty.
  std::function<void(std::uint32_t round)> progress;
};

/// Tokens of a round, and how long each round took.
struct TimedRounds {
  std::uint64_t tokens = 0;
  std::vector<double> seconds;  // [rounds]
};

struct WorkloadTimes {
  TimedRounds timed;
  std::vector<StepShape> steps;        // of one round; rounds are alike
  std::optional<TimedRounds> prefill;  // decode and mixed: their prompts, once after a warm-up
};

/// Blocks that a workload uses: every sequence gets as many as the longest one needs.
[[nodiscard]] std::uint64_t bench_blocks(const Workload& workload,
                                         const kvcache::KvGeometry& geometry,
                                         std::uint32_t step_tokens);

/// One round that does not count, then `rounds` that do. Prompts of decoding sequences are computed
/// twice (the second time counts) and their blocks used by all rounds.
/// Requires: check_workload() passed; the executor has room for bench_blocks() blocks and
/// sequences_at_once() chunks. Throws std::runtime_error when a step fails.
[[nodiscard]] WorkloadTimes run_workload(const BenchSetup& setup, const Workload& workload,
                                         const kvcache::KvGeometry& geometry);

}  // namespace kvasir::cli
