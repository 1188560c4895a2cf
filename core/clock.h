// Time as an argument: everything that needs to know the time is given a Clock, so that tests and
// the simulator move it by hand. Only SteadyClock reads the machine's monotonic clock.
#pragma once

#include <chrono>

namespace kvasir {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

/// Stands still until a test advances it.
class VirtualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{};
};

}  // namespace kvasir
