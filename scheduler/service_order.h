// Who is served first: a lower priority number, then the earlier arrival. While it waits a sequence
// ages, so that nothing that comes much later stays ahead of it for ever. Policies are comparators;
// plan() only walks the order.
#pragma once

#include "scheduler/sequence.h"

#include <cstdint>

namespace kvasir::scheduler {

/// Waiting this many steps is worth 1 level of priority, twice that 3, then 7, ... (2^k - 1), up to
/// the whole range of priorities after 32 of them; from there on every further interval is worth
/// the whole range again. So whatever arrives 33 intervals later, with whatever priority, is served
/// later.
inline constexpr std::uint64_t kAgingSteps = 64;

/// Levels of priority gained by waiting.
[[nodiscard]] std::int64_t aging_bonus(std::uint64_t waited_steps);

/// Order of the running: priority, then arrival. Growth goes from the front, preemption from the
/// back.
[[nodiscard]] bool running_before(const Sequence& a, const Sequence& b);
/// Order of the waiting: priority less the aging bonus, then arrival.
[[nodiscard]] bool waiting_before(const Sequence& a, const Sequence& b);

}  // namespace kvasir::scheduler
