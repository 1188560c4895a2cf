// The comparators. Arrival order is unique, so both are total orders and sorting by them is
// deterministic.
#include "scheduler/service_order.h"

#include <algorithm>

namespace kvasir::scheduler {
namespace {

/// A width that no difference of two 32-bit priorities exceeds: one interval is worth this much in
/// the end.
constexpr std::int64_t kPriorityRange = std::int64_t{1} << 32;
constexpr std::uint64_t kDoublings = 32;
constexpr std::uint64_t kMaxIntervals = std::uint64_t{1} << 30;  // keeps the product below 2^63

}  // namespace

std::int64_t aging_bonus(std::uint64_t waited_steps) {
  const std::uint64_t intervals = std::min(waited_steps / kAgingSteps, kMaxIntervals);
  const std::int64_t doubled = (std::int64_t{1} << std::min(intervals, kDoublings)) - 1;
  const std::uint64_t past = intervals > kDoublings ? intervals - kDoublings : 0;
  return doubled + static_cast<std::int64_t>(past) * kPriorityRange;
}

bool running_before(const Sequence& a, const Sequence& b) {
  if (a.priority != b.priority) return a.priority < b.priority;
  return a.arrival_order < b.arrival_order;
}

bool waiting_before(const Sequence& a, const Sequence& b) {
  const std::int64_t level_a = a.priority - aging_bonus(a.waited_steps);
  const std::int64_t level_b = b.priority - aging_bonus(b.waited_steps);
  if (level_a != level_b) return level_a < level_b;
  return a.arrival_order < b.arrival_order;
}

}  // namespace kvasir::scheduler
