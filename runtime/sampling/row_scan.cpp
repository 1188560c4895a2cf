#include "runtime/sampling/row_scan.h"

#include "core/check.h"

#include <algorithm>
#include <cmath>

namespace kvasir::runtime {
namespace {

constexpr std::size_t kLanes = 16;  // maxima of a range

std::size_t num_maxima(std::uint32_t vocab_size) {
  return (vocab_size + kVocabRange - 1) / kVocabRange * kLanes;
}

std::size_t count_above(std::span<const float> values, float below) {
  std::uint32_t count = 0;
  for (const float value : values) count += value > below ? 1U : 0U;
  return count;
}

float smallest(std::span<const float> values) {
  float result = values.front();
  for (const float value : values) result = value < result ? value : result;
  return result;
}

}  // namespace

RowScan::RowScan(std::uint32_t vocab_size) : maxima_(num_maxima(vocab_size)) {}

std::size_t RowScan::bytes(std::uint32_t vocab_size) {
  return num_maxima(vocab_size) * sizeof(float);
}

float RowScan::scan(const KernelTable& kernels, std::span<const float> logits) {
  KVASIR_CHECK(num_maxima(static_cast<std::uint32_t>(logits.size())) == maxima_.size());
  kernels_ = &kernels;
  logits_ = logits;
  maximum_ =
      kernels.lane_maxima(logits.data(), static_cast<std::uint32_t>(logits.size()), maxima_.data());
  return maximum_;
}

TokenId RowScan::first_above(float below) {
  for (std::size_t begin = 0; begin < logits_.size(); begin += kVocabRange) {
    if (range_maximum(begin) > below) {
      return static_cast<TokenId>(begin + find_above(begin, below).front());
    }
  }
  KVASIR_CHECK(false);
  return 0;
}

// As many maxima above the cut are as many tokens above it, and tokens are above it only where a
// maximum is. Halving stops as soon as the excess is small.
float RowScan::below_heaviest(std::size_t count) const {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (count > most_heaviest()) return -kInfinity;
  const float least = smallest(maxima_);
  if (count_above(maxima_, least) < count) return std::nextafter(least, -kInfinity);
  const std::size_t enough = count + count / 4 + 4;
  std::uint32_t low = ascending_bits(least);  // at least `count` are above it
  std::uint32_t high = ascending_bits(maximum_);
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    const std::size_t above = count_above(maxima_, float_of_ascending(middle));
    (above >= count ? low : high) = middle;
    if (above >= count && above <= enough) break;
  }
  return float_of_ascending(low);
}

float RowScan::range_maximum(std::size_t begin) const {
  const auto first = maxima_.begin() + static_cast<std::ptrdiff_t>(begin / kVocabRange * kLanes);
  return *std::max_element(first, first + kLanes);
}

std::span<const std::uint32_t> RowScan::find_above(std::size_t begin, float below) {
  const std::size_t count = std::min(kVocabRange, logits_.size() - begin);
  const std::uint32_t num_found = kernels_->find_above(
      logits_.data() + begin, below, static_cast<std::uint32_t>(count), found_.data());
  return std::span<const std::uint32_t>(found_).first(num_found);
}

}  // namespace kvasir::runtime
