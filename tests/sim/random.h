// Seeded randomness for workloads: the same seed gives the same simulation on every machine.
#pragma once

#include "core/rng.h"

#include <cstdint>

namespace kvasir::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix64(seed)) {}

  std::uint64_t next() { return mix64(state_ += 0x9e3779b97f4a7c15ULL); }
  /// In [low, high].
  std::uint32_t between(std::uint32_t low, std::uint32_t high) {
    return low + static_cast<std::uint32_t>(next() % (std::uint64_t{high} - low + 1));
  }
  bool chance(std::uint32_t per_mille) { return next() % 1000 < per_mille; }

 private:
  std::uint64_t state_;
};

}  // namespace kvasir::sim
