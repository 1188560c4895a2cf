#include "runtime/sampling/draw.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace kvasir::runtime {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A top_k of the whole vocabulary or more is off, so that it draws what an absent one draws.
bool limits_count(const SamplingParams& sampling, std::size_t num_tokens) {
  return sampling.top_k != 0 && sampling.top_k < num_tokens;
}

/// One draw: what its steps share. A token's score is (logit - best) / temperature, its weight the
/// exponential of that. Neither falls while the logit rises, so every filter is a cut through the
/// logits, and only tokens above it are looked at one by one.
class Draw {
 public:
  Draw(const KernelTable& kernels, RowScan& row, float best, const SamplingParams& sampling,
       double uniform, DrawScratch& scratch)
      : kernels_(kernels),
        row_(row),
        best_(best),
        sampling_(sampling),
        uniform_(uniform),
        scratch_(scratch) {}

  TokenId run();

 private:
  using Candidates = std::span<const Candidate>;

  [[nodiscard]] float score(float logit) const {
    return (bounded(logit) - best_) / sampling_.temperature;
  }
  [[nodiscard]] auto scoring() const {
    return [this](float logit) { return score(logit); };
  }
  [[nodiscard]] float weight(float logit) const;
  /// The highest logit that is too light for min_p, or whose weight is 0.
  [[nodiscard]] float below_lightest() const;
  /// A cut that at least `count` tokens are above, and all that tie with one of them.
  [[nodiscard]] float below_heaviest(std::size_t count) const;

  TokenId from_all();
  TokenId from_range(std::size_t begin, double before, double target);
  TokenId from_top_k();
  TokenId from_min_p();
  TokenId from_top_p();

  double sum_ranges();
  std::size_t collect(float below) {
    return collect_above(row_, below, scoring(), scratch_.candidates);
  }
  Candidates collected(std::size_t count) const {
    return Candidates(scratch_.candidates.list).first(count);
  }
  /// Calls take(weight) in order until it returns false; returns how many it was called for.
  template <typename Take>
  std::size_t walk(Candidates candidates, const Take& take);
  double sum_of(Candidates candidates);
  /// From the smallest prefix that reaches `wanted_sum`, at least one.
  TokenId from_nucleus(Candidates sorted, double wanted_sum);
  /// `sum` is sum_of(kept).
  TokenId from_list(Candidates kept, double sum);

  const KernelTable& kernels_;
  RowScan& row_;
  const float best_;
  const SamplingParams& sampling_;
  const double uniform_;
  DrawScratch& scratch_;
};

TokenId Draw::run() {
  if (limits_count(sampling_, row_.logits().size())) return from_top_k();
  if (sampling_.min_p > 0.0F) return from_min_p();
  return sampling_.top_p < 1.0F ? from_top_p() : from_all();
}

float Draw::weight(float logit) const {
  const float exponent = score(logit);
  float result = 0.0F;
  (void)kernels_.exp_shifted(&exponent, 0.0F, &result, 1);
  return result;
}

float Draw::below_lightest() const {
  const float least = sampling_.min_p;  // the heaviest weight is 1
  return last_without(best_, [&](float logit) {
    const float w = weight(logit);
    return w > 0.0F && w >= least;
  });
}

float Draw::below_heaviest(std::size_t count) const {
  const float below = row_.below_heaviest(count);
  if (below == -kInfinity) return below;
  // Dividing by the temperature can make equal what was not, and ties go to the lowest id: tokens
  // just below the cut can be as heavy as one above it.
  const float lowest_score = score(std::nextafter(below, kInfinity));
  return last_without(best_, [&](float logit) { return score(logit) >= lowest_score; });
}

double Draw::sum_ranges() {
  const std::span<const float> logits = row_.logits();
  kernels_.softmax_sums(logits.data(), best_, sampling_.temperature, scratch_.range_sums.data(),
                        static_cast<std::uint32_t>(logits.size()));
  double total = 0.0;
  for (const double sum : scratch_.range_sums) total += sum;
  return total;
}

/// From all tokens in id order: finds the vocabulary range first, then the token in it.
TokenId Draw::from_all() {
  const double target = uniform_ * sum_ranges();
  double before = 0.0, before_last = 0.0;
  std::size_t last = 0;  // the last range with any weight
  for (std::size_t range = 0; range < scratch_.range_sums.size(); ++range) {
    const double sum = scratch_.range_sums[range];
    if (sum > 0.0) {
      last = range;
      before_last = before;
    }
    before += sum;
    if (target < before) break;
  }
  // Rounding may leave the target at the very end; then the last token with any weight is the
  // answer.
  return from_range(last * kVocabRange, before_last, target);
}

TokenId Draw::from_range(std::size_t begin, double before, double target) {
  const std::span<const float> logits = row_.logits();
  const std::size_t count = std::min(kVocabRange, logits.size() - begin);
  const std::span<float> weights = std::span(scratch_.weights).first(count);
  std::transform(logits.begin() + static_cast<std::ptrdiff_t>(begin),
                 logits.begin() + static_cast<std::ptrdiff_t>(begin + count), weights.begin(),
                 scoring());
  (void)kernels_.exp_shifted(weights.data(), 0.0F, weights.data(),
                             static_cast<std::uint32_t>(count));
  TokenId chosen = 0;
  double reached = before;
  for (std::size_t i = 0; i < count; ++i) {
    if (weights[i] <= 0.0F) continue;
    chosen = static_cast<TokenId>(begin + i);
    reached += static_cast<double>(weights[i]);
    if (target < reached) break;
  }
  return chosen;
}

/// Min-p and top-k both keep a prefix of the descending order, so that their order does not matter.
TokenId Draw::from_top_k() {
  const std::size_t top_k = sampling_.top_k;
  const float below = std::max(below_lightest(), below_heaviest(top_k));
  const std::size_t count = collect_heaviest(row_, below, top_k, scoring(), scratch_.candidates);
  const Candidates kept = sort_heaviest(scratch_.candidates, count, top_k);
  const double sum = sum_of(kept);
  if (sampling_.top_p >= 1.0F) return from_list(kept, sum);
  return from_nucleus(kept, static_cast<double>(sampling_.top_p) * sum);
}

TokenId Draw::from_min_p() {
  const std::size_t count = collect(below_lightest());
  const double sum = sum_of(collected(count));
  if (sampling_.top_p >= 1.0F) return from_list(collected(count), sum);
  return from_nucleus(sort_heaviest(scratch_.candidates, count, count),
                      static_cast<double>(sampling_.top_p) * sum);
}

/// Tries whether a few of the heaviest make up the nucleus. If not, leaves out what cannot be in
/// it: tokens so light that all of them together, were they the whole vocabulary, would not make up
/// what the nucleus leaves. Half of that bound is taken, so that rounding does not matter.
TokenId Draw::from_top_p() {
  const double total = sum_ranges();
  const double top_p = sampling_.top_p;
  const double wanted_sum = top_p * total;
  for (const std::size_t few : {32U, 256U}) {
    if (few > row_.most_heaviest()) break;
    const std::size_t count = collect(below_heaviest(few));
    constexpr double kSurely = 1.0 + 1e-9;  // another order of the sum would do as well
    if (sum_of(collected(count)) < wanted_sum * kSurely) continue;
    return from_nucleus(sort_heaviest(scratch_.candidates, count, count), wanted_sum);
  }
  const double bound = 0.5 * (1.0 - top_p) * total / static_cast<double>(row_.logits().size());
  const float below = last_without(best_, [&](float logit) {
    const float w = weight(logit);
    return w > 0.0F && static_cast<double>(w) >= bound;
  });
  const std::size_t count = collect(below);
  return from_nucleus(sort_heaviest(scratch_.candidates, count, count), wanted_sum);
}

template <typename Take>
std::size_t Draw::walk(Candidates candidates, const Take& take) {
  for (std::size_t begin = 0; begin < candidates.size(); begin += kVocabRange) {
    const std::size_t count = std::min(kVocabRange, candidates.size() - begin);
    const std::span<float> weights = std::span(scratch_.weights).first(count);
    std::transform(candidates.begin() + static_cast<std::ptrdiff_t>(begin),
                   candidates.begin() + static_cast<std::ptrdiff_t>(begin + count), weights.begin(),
                   score_of);
    (void)kernels_.exp_shifted(weights.data(), 0.0F, weights.data(),
                               static_cast<std::uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      if (!take(static_cast<double>(weights[i]))) return begin + i + 1;
    }
  }
  return candidates.size();
}

double Draw::sum_of(Candidates candidates) {
  double sum = 0.0;
  (void)walk(candidates, [&](double w) {
    sum += w;
    return true;
  });
  return sum;
}

TokenId Draw::from_nucleus(Candidates sorted, double wanted_sum) {
  double sum = 0.0;
  const std::size_t size = walk(sorted, [&](double w) {
    sum += w;
    return sum < wanted_sum;
  });
  return from_list(sorted.first(size), sum);
}

TokenId Draw::from_list(Candidates kept, double sum) {
  const double target = uniform_ * sum;
  double reached = 0.0;
  const std::size_t num_walked = walk(kept, [&](double w) {
    reached += w;
    return !(target < reached);
  });
  return token_of(kept[num_walked - 1]);
}

}  // namespace

float bounded(float logit) {
  // Both comparisons are false for NaN.
  return logit > -kInfinity ? std::min(logit, std::numeric_limits<float>::max()) : -kInfinity;
}

DrawScratch::DrawScratch(std::uint32_t vocab_size)
    : candidates(vocab_size), range_sums((vocab_size + kVocabRange - 1) / kVocabRange) {}

std::size_t DrawScratch::bytes(std::uint32_t vocab_size) {
  return CandidateBuffer::bytes(vocab_size) +
         (vocab_size + kVocabRange - 1) / kVocabRange * sizeof(double);
}

TokenId draw(const KernelTable& kernels, RowScan& row, float best, const SamplingParams& sampling,
             double uniform, DrawScratch& scratch) {
  return Draw(kernels, row, best, sampling, uniform, scratch).run();
}

}  // namespace kvasir::runtime
