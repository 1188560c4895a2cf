// A Duration for people and for metrics, which count in seconds.
#pragma once

#include "core/clock.h"

#include <chrono>

namespace kvasir {

[[nodiscard]] inline double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace kvasir
