// Randomness as a pure function: the number for a draw depends on the request's seed, the number of
// the choice within its prompt and the absolute position only, so that batch mates, chunks and
// preemption change nothing.
#pragma once

#include <cstdint>

namespace kvasir {

/// One step of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
/// generators").
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

struct RandomKey {
  std::uint64_t seed = 0;
  std::uint32_t choice_index = 0;  // k-th choice of its prompt, from 0
  std::uint64_t position = 0;      // absolute position of the token that is drawn
};

/// A uniform number in [0, 1) with 53 random bits.
constexpr double uniform01(const RandomKey& key) {
  const std::uint64_t bits = mix64(mix64(mix64(key.seed) ^ key.choice_index) ^ key.position);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace kvasir
