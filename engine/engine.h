// The serving loop's one step: drain commands, plan, apply, execute, absorb, publish. One thread
// owns the scheduler state, the KV cache and the executor and takes no lock for them; others post
// commands and read status snapshots. It knows no clock of its own, no text and no wire format.
// engine_thread runs it.
#pragma once

#include "core/clock.h"
#include "core/result.h"
#include "engine/events.h"
#include "engine/step_stats.h"
#include "kvcache/kv_geometry.h"
#include "runtime/executor.h"
#include "scheduler/step_limits.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvasir::engine {

struct EngineOptions {
  kvcache::KvGeometry geometry;
  std::uint32_t num_blocks = 0;  // of the KV arena
  scheduler::StepLimits limits;  // step tokens, running sequences, context
  std::uint32_t max_waiting_sequences =
      1024;  // beside those that fit in limits.max_sequences; bounds the mailbox too
  std::uint64_t model_hash = 0;  // first part of every block's hash key
  bool prefix_cache = true;
  /// Share of the prefix-cache hits, 0..1, that are recomputed and compared when there is nothing
  /// else to do.
  double audit_rate = 0.0;
  /// Told on the engine thread of every mismatch, and of an audit whose computation failed, in
  /// words for the log; may be empty.
  std::function<void(const std::string&)> on_audit_finding;
};

class Engine {
 public:
  /// `executor` and `clock` must outlive the engine.
  Engine(const EngineOptions& options, runtime::Executor& executor, const Clock& clock);
  ~Engine();

  /// A fresh id for a Submit. Any thread.
  [[nodiscard]] SequenceId next_sequence_id();

  /// Any thread; never blocks. Errors: kQueueFull when running and waiting sequences and the
  /// mailbox together hold as many as may run and wait, kDraining after a Drain. A list of
  /// submissions (n > 1, several prompts) is taken whole or not at all.
  [[nodiscard]] Result<void> submit(std::vector<Submit> submissions);
  /// Whether submit() would have room for `count` sequences now: kQueueFull, or kInvalidValue when
  /// it never could. For refusing before costly preparation. Any thread.
  [[nodiscard]] Result<void> check_room(std::uint64_t count) const;
  void cancel(const Cancel& cancel);
  void drain(TimePoint deadline);

  /// One step; engine thread only. False when there was nothing to do. When nothing runs or waits,
  /// what the truth check has to do is done, a stripe each time: a request that comes meanwhile
  /// waits for no more.
  bool step();

  /// Waits until there is a command; returns at once when sequences are live or prefixes are to be
  /// audited. Engine thread only.
  /// False when the engine is drained and empty or stopped: the loop ends.
  bool wait_for_work();
  /// Ends every live sequence with kCancelled/kDrain at the next step and makes wait_for_work
  /// return false. Any thread.
  void stop();

  /// A snapshot, at most one step old. Any thread.
  [[nodiscard]] EngineStatus status() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::engine
