// When a place in a full queue will be free, for Retry-After: an estimate from what runs and from
// how long steps have taken lately. It changes nothing.
#pragma once

#include "core/clock.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_limits.h"

#include <cstdint>

namespace kvasir::engine {

/// Nobody is told to wait longer: so far ahead an estimate is worth little.
inline constexpr std::uint32_t kMaxRetryAfterSeconds = 60;

/// The mean length of steps, in which each weighs an eighth when it comes and less with every later
/// one: it follows the load within some dozens of steps.
class StepTimes {
 public:
  void add(Duration step) { mean_ = mean_ == Duration{} ? step : mean_ + (step - mean_) / 8; }
  [[nodiscard]] Duration mean() const { return mean_; }

 private:
  Duration mean_{};
};

/// The steps until the first of the running sequences is expected to end, times their mean length:
/// then somebody leaves the queue. In seconds, rounded up; at least 1, at most
/// kMaxRetryAfterSeconds.
[[nodiscard]] std::uint32_t retry_after_seconds(const scheduler::SchedulerState& state,
                                                const scheduler::StepLimits& limits,
                                                const StepTimes& times);

}  // namespace kvasir::engine
