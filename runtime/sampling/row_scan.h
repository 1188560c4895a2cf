// One row of logits looked at from above: where its maxima are, and which tokens lie above a cut,
// without touching the rest one by one. What the tokens are wanted for is its callers' business.
#pragma once

#include "core/ids.h"
#include "runtime/kernels/kernel_table.h"

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvasir::runtime {

/// The range of KernelTable::lane_maxima and softmax_sums.
inline constexpr std::size_t kVocabRange = 1024;

/// The float's bits as a number that ascends with it; -0 is just below 0.
[[nodiscard]] constexpr std::uint32_t ascending_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
[[nodiscard]] constexpr float float_of_ascending(std::uint32_t ascending) {
  const bool negative = (ascending & 0x80000000U) == 0;
  return std::bit_cast<float>(negative ? ~ascending : ascending & 0x7FFFFFFFU);
}

/// The largest float below `upto` for which holds() is false, -inf if it never is.
/// Requires: holds(upto), and holds(x) for every x above one for which it holds.
template <typename Holds>
[[nodiscard]] float last_without(float upto, const Holds& holds) {
  std::uint32_t without = ascending_bits(-std::numeric_limits<float>::infinity());
  std::uint32_t with = ascending_bits(upto);
  while (with - without > 1) {
    const std::uint32_t middle = without + (with - without) / 2;
    (holds(float_of_ascending(middle)) ? with : without) = middle;
  }
  return float_of_ascending(without);
}

class RowScan {
 public:
  explicit RowScan(std::uint32_t vocab_size);
  [[nodiscard]] static std::size_t bytes(std::uint32_t vocab_size);

  /// Takes another row, which must stay until the next one, and returns its maximum; NaN counts as
  /// -inf.
  float scan(const KernelTable& kernels, std::span<const float> logits);

  [[nodiscard]] std::span<const float> logits() const { return logits_; }
  /// The lowest token above `below`. Requires: there is one.
  [[nodiscard]] TokenId first_above(float below);
  /// A cut that at least `count` tokens are above, few more if it can be had cheaply. -inf if it
  /// cannot.
  [[nodiscard]] float below_heaviest(std::size_t count) const;
  /// Up to so many below_heaviest() finds a cut.
  [[nodiscard]] std::size_t most_heaviest() const { return maxima_.size() / 2; }

  /// Calls visit(token) for the tokens above `below`, ascending; NaN is above nothing. After each
  /// range next_cut() says where the cut is from then on.
  template <typename Visit, typename NextCut>
  void for_each_above(float below, const Visit& visit, const NextCut& next_cut) {
    for (std::size_t begin = 0; begin < logits_.size(); begin += kVocabRange) {
      if (!(range_maximum(begin) > below)) continue;
      for (const std::uint32_t index : find_above(begin, below)) {
        visit(static_cast<TokenId>(begin + index));
      }
      below = next_cut(below);
    }
  }

 private:
  /// Of the range that begins at token `begin`.
  [[nodiscard]] float range_maximum(std::size_t begin) const;
  [[nodiscard]] std::span<const std::uint32_t> find_above(std::size_t begin, float below);

  const KernelTable* kernels_ = nullptr;
  std::span<const float> logits_;
  std::vector<float> maxima_;                       // [num_ranges][16]
  float maximum_ = 0.0F;                            // the largest of them
  std::array<std::uint32_t, kVocabRange> found_{};  // indices within one range
};

}  // namespace kvasir::runtime
