#include "runtime/sampling/sampler.h"

#include "core/check.h"
#include "core/rng.h"
#include "runtime/sampling/logprobs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvasir::runtime {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Weights are summed over vocabulary ranges of this size; the draw finds its range first.
constexpr std::size_t kSumRange = 1024;

struct Best {
  TokenId token = 0;
  float logit = -kInfinity;
};

/// The argmax, ties to the lowest id; NaN counts as -inf. Sixteen independent maxima let the
/// compiler use vectors.
Best find_best(std::span<const float> logits) {
  std::array<float, 16> lanes{};
  lanes.fill(-kInfinity);
  std::size_t i = 0;
  for (; i + lanes.size() <= logits.size(); i += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
    }
  }
  for (; i < logits.size(); ++i) lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
  const float best = *std::max_element(lanes.begin(), lanes.end());
  const auto found = std::find(logits.begin(), logits.end(), best);
  if (found == logits.end()) return {};
  return {static_cast<TokenId>(found - logits.begin()), best};
}

std::size_t num_generated(const SampleInput& input) {
  return input.history.size() -
         std::min<std::size_t>(input.num_prompt_tokens, input.history.size());
}

bool bans_stop_tokens(const SampleInput& input) {
  return num_generated(input) < input.request->stop.min_tokens;
}

bool changes_logits(const SampleInput& input) {
  const SamplingParams& sampling = input.request->sampling;
  return sampling.repetition_penalty != 1.0F || sampling.presence_penalty != 0.0F ||
         sampling.frequency_penalty != 0.0F || !sampling.logit_bias.empty() ||
         bans_stop_tokens(input);
}

bool takes_best(const SamplingParams& sampling) {
  return sampling.temperature == 0.0F || sampling.top_k == 1 || sampling.top_p <= 0.0F;
}

/// A top_k of the whole vocabulary or more is off, so that it draws what an absent one draws.
bool limits_count(const SamplingParams& sampling, std::size_t num_tokens) {
  return sampling.top_k != 0 && sampling.top_k < num_tokens;
}

bool filters(const SamplingParams& sampling, std::size_t num_tokens) {
  return limits_count(sampling, num_tokens) || sampling.min_p > 0.0F || sampling.top_p < 1.0F;
}

/// Calls change(logit, count) once for each distinct token of `tokens`.
template <typename Change>
void for_each_distinct(std::span<const TokenId> tokens, SamplerScratch& scratch,
                       const Change& change) {
  std::vector<TokenId>& counts = scratch.candidates;  // [vocab_size]: free until the filters
  for (const TokenId token : tokens) counts[token] = 0;
  for (const TokenId token : tokens) ++counts[token];
  for (const TokenId token : tokens) {
    if (counts[token] == 0) continue;
    change(scratch.adjusted[token], static_cast<float>(counts[token]));
    counts[token] = 0;
  }
}

void apply_penalties(const SampleInput& input, SamplerScratch& scratch) {
  const SamplingParams& sampling = input.request->sampling;
  if (sampling.repetition_penalty != 1.0F) {
    for_each_distinct(input.history, scratch, [&](float& logit, float /*count*/) {
      logit =
          logit > 0.0F ? logit / sampling.repetition_penalty : logit * sampling.repetition_penalty;
    });
  }
  if (sampling.presence_penalty != 0.0F || sampling.frequency_penalty != 0.0F) {
    for_each_distinct(input.history.last(num_generated(input)), scratch,
                      [&](float& logit, float count) {
                        logit -= sampling.presence_penalty + sampling.frequency_penalty * count;
                      });
  }
}

/// NaN and -inf become -inf, +inf the largest float: differences of two logits are then never NaN.
float bounded(float logit) {
  // Both comparisons are false for NaN.
  return logit > -kInfinity ? std::min(logit, std::numeric_limits<float>::max()) : -kInfinity;
}

/// Fills scratch.adjusted: the raw logits with everything that comes before the temperature.
void adjust(const SampleInput& input, SamplerScratch& scratch) {
  std::transform(input.logits.begin(), input.logits.end(), scratch.adjusted.begin(), bounded);
  if (!changes_logits(input)) return;
  apply_penalties(input, scratch);
  for (const auto& [token, bias] : input.request->sampling.logit_bias) {
    scratch.adjusted[token] += bias;
  }
  // A penalty near 0 divides a logit past the largest float.
  std::transform(scratch.adjusted.begin(), scratch.adjusted.end(), scratch.adjusted.begin(),
                 bounded);
  if (!bans_stop_tokens(input)) return;
  for (const TokenId token : input.request->stop.stop_token_ids) {
    if (token < scratch.adjusted.size()) scratch.adjusted[token] = -kInfinity;
  }
}

double uniform_of(const SampleInput& input) {
  const SamplingParams& sampling = input.request->sampling;
  return uniform01({.seed = sampling.seed,
                    .choice_index = sampling.choice_index,
                    .position = input.history.size()});
}

/// Eight lanes, folded in ascending order: one fixed order that the compiler can keep in vectors.
double sum_of(std::span<const float> weights) {
  std::array<double, 8> lanes{};
  std::size_t i = 0;
  for (; i + lanes.size() <= weights.size(); i += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane] += static_cast<double>(weights[i + lane]);
    }
  }
  for (; i < weights.size(); ++i) lanes[0] += static_cast<double>(weights[i]);
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

/// Draws from all tokens in id order: finds the vocabulary range first, then the token in it.
TokenId draw_from_all(std::span<const float> weights, double uniform) {
  const auto range_at = [&](std::size_t begin) {
    return weights.subspan(begin, std::min(kSumRange, weights.size() - begin));
  };
  double total = 0.0;
  for (std::size_t begin = 0; begin < weights.size(); begin += kSumRange) {
    total += sum_of(range_at(begin));
  }
  const double target = uniform * total;
  double before = 0.0;
  TokenId chosen = 0;
  for (std::size_t begin = 0; begin < weights.size(); begin += kSumRange) {
    const double after = before + sum_of(range_at(begin));
    // Rounding may leave the target at the very end; then the last token with any weight is the
    // answer.
    const bool here = target < after;
    double reached = before;
    for (std::size_t i = 0; i < range_at(begin).size(); ++i) {
      if (weights[begin + i] <= 0.0F) continue;
      chosen = static_cast<TokenId>(begin + i);
      reached += static_cast<double>(weights[begin + i]);
      if (here && target < reached) return chosen;
    }
    if (here) return chosen;
    before = after;
  }
  return chosen;
}

/// Draws from `kept` in its order.
TokenId draw_from_list(std::span<const TokenId> kept, std::span<const float> weights,
                       double uniform) {
  double total = 0.0;
  for (const TokenId token : kept) total += static_cast<double>(weights[token]);
  const double target = uniform * total;
  double reached = 0.0;
  for (const TokenId token : kept) {
    reached += static_cast<double>(weights[token]);
    if (target < reached) return token;
  }
  return kept.back();
}

/// Reorders `candidates` so that the nucleus comes first, heaviest first, and returns it.
/// A heap gives up its best one by one, so that only the nucleus is sorted.
std::span<const TokenId> nucleus(std::span<TokenId> candidates, std::span<const float> weights,
                                 double wanted_sum, const auto& heavier) {
  const auto lighter = [&](TokenId a, TokenId b) { return heavier(b, a); };
  std::make_heap(candidates.begin(), candidates.end(), lighter);
  auto end = candidates.end();
  double sum = 0.0;
  while (end != candidates.begin() && (end == candidates.end() || sum < wanted_sum)) {
    std::pop_heap(candidates.begin(), end, lighter);
    --end;
    sum += static_cast<double>(weights[*end]);
  }
  std::reverse(candidates.begin(), candidates.end());
  return candidates.first(static_cast<std::size_t>(candidates.end() - end));
}

/// Leaves out of `candidates` what cannot be in the nucleus: tokens so light that all of them
/// together, were they the whole vocabulary, would not make up what the nucleus leaves. Half of
/// that bound is taken, so that rounding does not matter.
std::span<TokenId> without_light_tail(std::span<TokenId> candidates, std::span<const float> weights,
                                      double total, double top_p) {
  const double bound = 0.5 * (1.0 - top_p) * total / static_cast<double>(candidates.size());
  const auto end = std::remove_if(candidates.begin(), candidates.end(), [&](TokenId token) {
    return static_cast<double>(weights[token]) < bound;
  });
  return candidates.first(static_cast<std::size_t>(end - candidates.begin()));
}

/// Top-k, min-p and top-p over the weights, then the draw. `scaled` are the logits that the weights
/// were made of: they order tokens whose weights round to the same float.
TokenId draw_filtered(const SamplingParams& sampling, std::span<const float> scaled, double uniform,
                      SamplerScratch& scratch) {
  const std::span<const float> weights(scratch.probabilities);
  const auto heavier = [&](TokenId a, TokenId b) {
    return scaled[a] > scaled[b] || (scaled[a] == scaled[b] && a < b);
  };
  // Min-p first: both it and top-k keep a prefix of the descending order, so their order does not
  // matter. The heaviest weight is 1.
  std::size_t count = 0;
  for (std::size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] > 0.0F && weights[id] >= sampling.min_p) {
      scratch.candidates[count++] = static_cast<TokenId>(id);
    }
  }
  std::span<TokenId> candidates(scratch.candidates.data(), count);
  if (limits_count(sampling, weights.size())) {
    const std::size_t kept = std::min<std::size_t>(sampling.top_k, candidates.size());
    std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(kept),
                      candidates.end(), heavier);
    candidates = candidates.first(kept);
  }
  if (sampling.top_p >= 1.0F) return draw_from_list(candidates, weights, uniform);
  double total = 0.0;
  for (const TokenId token : candidates) total += static_cast<double>(weights[token]);
  const double top_p = sampling.top_p;
  candidates = without_light_tail(candidates, weights, total, top_p);
  return draw_from_list(nucleus(candidates, weights, top_p * total, heavier), weights, uniform);
}

/// Temperature, filters and draw over scratch.adjusted, whose largest value is `best`.
TokenId draw(const KernelTable& kernels, const SampleInput& input, float best,
             SamplerScratch& scratch) {
  const SamplingParams& sampling = input.request->sampling;
  std::vector<float>& scaled = scratch.adjusted;
  for (float& logit : scaled) logit = (logit - best) / sampling.temperature;
  (void)kernels.exp_shifted(scaled.data(), 0.0F, scratch.probabilities.data(),
                            static_cast<std::uint32_t>(scaled.size()));
  const double uniform = uniform_of(input);
  return filters(sampling, scaled.size()) ? draw_filtered(sampling, scaled, uniform, scratch)
                                          : draw_from_all(scratch.probabilities, uniform);
}

void add_logprobs(const KernelTable& kernels, const SampleInput& input, SampledToken& result) {
  const LogitsStats stats =
      kernels.logits_stats(input.logits.data(), static_cast<std::uint32_t>(input.logits.size()));
  result.logprob = logprob_of(input.logits[result.token], stats.logsumexp);
  select_top(input.logits, stats.logsumexp, *input.request->top_logprobs, result.top);
}

}  // namespace

SamplerScratch::SamplerScratch(std::uint32_t vocab_size)
    : adjusted(vocab_size), probabilities(vocab_size), candidates(vocab_size) {}

SampledToken sample(const KernelTable& kernels, const SampleInput& input, SamplerScratch& scratch) {
  KVASIR_CHECK(input.request != nullptr);
  KVASIR_CHECK(!input.logits.empty() && input.logits.size() == scratch.adjusted.size());
  const SamplingParams& sampling = input.request->sampling;
  SampledToken result;
  result.sequence = input.sequence;
  const bool greedy = takes_best(sampling);
  if (greedy && !changes_logits(input)) {
    const Best best = find_best(input.logits);
    result.token = best.token;
    result.all_banned = best.logit == -kInfinity;
  } else {
    adjust(input, scratch);
    const Best best = find_best(scratch.adjusted);
    result.all_banned = best.logit == -kInfinity;
    result.token =
        greedy || result.all_banned ? best.token : draw(kernels, input, best.logit, scratch);
  }
  if (input.request->top_logprobs.has_value()) add_logprobs(kernels, input, result);
  return result;
}

}  // namespace kvasir::runtime
