#include "runtime/sampling/candidates.h"

#include <algorithm>
#include <array>

namespace kvasir::runtime {
namespace {

/// From so many on, three counting passes are faster than comparing.
constexpr std::size_t kRadixFrom = 512;
constexpr std::uint32_t kDigitBits = 11;  // three digits for the 32 bits of the score
constexpr std::size_t kNumDigits = 3;
constexpr std::uint32_t kScoreShift = 32;

std::size_t digit_of(Candidate candidate, std::size_t digit) {
  const auto shift = kScoreShift + static_cast<std::uint32_t>(digit) * kDigitBits;
  return (static_cast<std::uint64_t>(candidate) >> shift) & ((1U << kDigitBits) - 1U);
}

using DigitCounts = std::array<std::array<std::uint32_t, 1U << kDigitBits>, kNumDigits>;

/// Sorts by score alone, lowest digit first; each pass keeps the order of equals, and so ascending
/// tokens stay ascending. A digit that all have in common needs no pass.
void radix_sort(CandidateBuffer& buffer, std::size_t count) {
  DigitCounts counts{};
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t digit = 0; digit < kNumDigits; ++digit) {
      ++counts[digit][digit_of(buffer.list[i], digit)];
    }
  }
  for (std::size_t digit = 0; digit < kNumDigits; ++digit) {
    if (counts[digit][digit_of(buffer.list.front(), digit)] == count) continue;
    std::uint32_t place = 0;
    for (std::uint32_t& of_value : counts[digit]) {
      const std::uint32_t next = place + of_value;
      of_value = place;
      place = next;
    }
    for (std::size_t i = 0; i < count; ++i) {
      buffer.spare[counts[digit][digit_of(buffer.list[i], digit)]++] = buffer.list[i];
    }
    buffer.list.swap(buffer.spare);
  }
}

}  // namespace

void pick_heaviest(CandidateBuffer& buffer, std::size_t count, std::size_t wanted) {
  if (wanted == 0 || wanted >= count) return;
  const auto begin = buffer.list.begin();
  std::nth_element(begin, begin + static_cast<std::ptrdiff_t>(wanted - 1),
                   begin + static_cast<std::ptrdiff_t>(count));
}

std::span<const Candidate> sort_heaviest(CandidateBuffer& buffer, std::size_t count,
                                         std::size_t wanted) {
  const std::size_t kept = std::min(count, wanted);
  if (wanted > kFewCandidates && count >= kRadixFrom) {
    radix_sort(buffer, count);
  } else {
    pick_heaviest(buffer, count, kept);
    std::sort(buffer.list.begin(), buffer.list.begin() + static_cast<std::ptrdiff_t>(kept));
  }
  return std::span<const Candidate>(buffer.list).first(kept);
}

}  // namespace kvasir::runtime
