#include "engine/retry_after.h"

#include "scheduler/forecast.h"

#include <algorithm>
#include <limits>

namespace kvasir::engine {
namespace {

/// A token each step, once the prompt is computed.
std::uint64_t steps_to_end(const scheduler::SchedulerState& state,
                           const scheduler::Sequence& sequence,
                           const scheduler::StepLimits& limits) {
  const std::uint64_t prompt_steps =
      (std::max(sequence.remaining_tokens(), 1U) - 1) / limits.max_step_tokens;
  return prompt_steps + std::max(scheduler::forecast_remaining_tokens(state, sequence), 1U);
}

}  // namespace

std::uint32_t retry_after_seconds(const scheduler::SchedulerState& state,
                                  const scheduler::StepLimits& limits, const StepTimes& times) {
  std::uint64_t steps = std::numeric_limits<std::uint64_t>::max();
  for (const scheduler::Sequence& sequence : state.running) {
    steps = std::min(steps, steps_to_end(state, sequence, limits));
  }
  const auto step_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(times.mean().count(), 0));
  if (state.running.empty() || step_ns == 0) return 1;
  constexpr std::uint64_t kSecond = 1'000'000'000;
  // Compared before it is multiplied: a product of the two could overflow.
  if (steps > kMaxRetryAfterSeconds * kSecond / step_ns) return kMaxRetryAfterSeconds;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      (steps * step_ns + kSecond - 1) / kSecond, 1, kMaxRetryAfterSeconds));
}

}  // namespace kvasir::engine
