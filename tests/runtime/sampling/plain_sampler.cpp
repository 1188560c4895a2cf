#include "tests/runtime/sampling/plain_sampler.h"

#include "core/rng.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace kvasir::runtime::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

float within_floats(float logit) {
  if (std::isnan(logit)) return -kInf;
  return std::min(logit, std::numeric_limits<float>::max());
}

std::map<TokenId, int> count(std::span<const TokenId> tokens) {
  std::map<TokenId, int> counts;
  for (const TokenId token : tokens) ++counts[token];
  return counts;
}

/// Steps 1 to 5.
std::vector<float> adjusted_logits(const SampleInput& input) {
  const SamplingParams& s = input.request->sampling;
  std::vector<float> logits(input.logits.begin(), input.logits.end());
  for (float& logit : logits) logit = within_floats(logit);
  const auto generated = input.history.subspan(input.num_prompt_tokens);
  for (const auto& [token, times] : count(input.history)) {
    float& logit = logits[token];
    logit = logit > 0.0F ? logit / s.repetition_penalty : logit * s.repetition_penalty;
  }
  for (const auto& [token, times] : count(generated)) {
    logits[token] -= s.presence_penalty + s.frequency_penalty * static_cast<float>(times);
  }
  for (const auto& [token, bias] : s.logit_bias) logits[token] += bias;
  for (float& logit : logits) logit = within_floats(logit);
  if (generated.size() < input.request->stop.min_tokens) {
    for (const TokenId token : input.request->stop.stop_token_ids) logits[token] = -kInf;
  }
  return logits;
}

/// All tokens, heaviest first, ties to the lowest id; NaN counts as -inf.
std::vector<TokenId> descending(std::span<const float> values) {
  std::vector<TokenId> order(values.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto value_of = [&](TokenId id) { return std::isnan(values[id]) ? -kInf : values[id]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](TokenId a, TokenId b) { return value_of(a) > value_of(b); });
  return order;
}

double sum_in_order(std::span<const TokenId> tokens, std::span<const float> weights) {
  double sum = 0.0;
  for (const TokenId token : tokens) sum += static_cast<double>(weights[token]);
  return sum;
}

/// KernelTable::softmax_sums of one range.
double sum_of_range(std::span<const float> weights) {
  double lanes[8] = {};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    lanes[i < weights.size() / 8 * 8 ? i % 8 : 0] += static_cast<double>(weights[i]);
  }
  return std::accumulate(std::begin(lanes), std::end(lanes), 0.0);
}

std::vector<double> range_sums(std::span<const float> weights) {
  std::vector<double> sums;
  for (std::size_t begin = 0; begin < weights.size(); begin += 1024) {
    const std::size_t size = std::min<std::size_t>(1024, weights.size() - begin);
    sums.push_back(sum_of_range(weights.subspan(begin, size)));
  }
  return sums;
}

/// With no filter: in id order, each range of the vocabulary starting from the sum of those before.
TokenId draw_from_ranges(std::span<const float> weights, double uniform) {
  const std::vector<double> sums = range_sums(weights);
  const double target = uniform * std::accumulate(sums.begin(), sums.end(), 0.0);
  double before = 0.0;
  TokenId last = 0;
  for (std::size_t range = 0; range < sums.size(); ++range) {
    double reached = before;
    before += sums[range];
    const std::size_t end = std::min(weights.size(), (range + 1) * 1024);
    for (std::size_t id = range * 1024; id < end; ++id) {
      if (weights[id] == 0.0F) continue;
      last = static_cast<TokenId>(id);
      reached += static_cast<double>(weights[id]);
      if (target < before && target < reached) return last;
    }
    if (target < before) return last;
  }
  return last;
}

TokenId draw_from_tokens(std::span<const TokenId> kept, std::span<const float> weights,
                         double uniform) {
  const double target = uniform * sum_in_order(kept, weights);
  double reached = 0.0;
  for (const TokenId token : kept) {
    reached += static_cast<double>(weights[token]);
    if (target < reached) return token;
  }
  return kept.back();
}

/// Steps 7 and 8.
TokenId draw_plainly(const KernelTable& kernels, std::span<const float> logits,
                     const SamplingParams& s, double uniform) {
  const float best = *std::max_element(logits.begin(), logits.end());
  std::vector<float> scores, weights(logits.size());
  for (const float logit : logits) scores.push_back((logit - best) / s.temperature);
  (void)kernels.exp_shifted(scores.data(), 0.0F, weights.data(),
                            static_cast<std::uint32_t>(weights.size()));
  const bool limited = s.top_k != 0 && s.top_k < logits.size();
  if (!limited && s.min_p <= 0.0F && s.top_p >= 1.0F) return draw_from_ranges(weights, uniform);

  std::vector<TokenId> kept = descending(scores);
  if (limited) kept.resize(s.top_k);
  std::erase_if(kept, [&](TokenId id) { return weights[id] == 0.0F || weights[id] < s.min_p; });
  std::vector<TokenId> by_id = kept;
  std::sort(by_id.begin(), by_id.end());
  if (s.top_p >= 1.0F) return draw_from_tokens(limited ? kept : by_id, weights, uniform);

  double total = sum_in_order(limited ? kept : by_id, weights);
  if (!limited && s.min_p <= 0.0F) {
    const std::vector<double> sums = range_sums(weights);
    total = std::accumulate(sums.begin(), sums.end(), 0.0);
  }
  double sum = 0.0;
  std::size_t size = 0;
  while (size < kept.size() && (size == 0 || sum < static_cast<double>(s.top_p) * total)) {
    sum += static_cast<double>(weights[kept[size++]]);
  }
  kept.resize(size);
  return draw_from_tokens(kept, weights, uniform);
}

void add_logprobs(const KernelTable& kernels, const SampleInput& input, SampledToken& result) {
  const std::span<const float> logits = input.logits;
  const std::vector<TokenId> order = descending(logits);
  const float max = std::isnan(logits[order[0]]) ? -kInf : logits[order[0]];
  float logsumexp = max;
  if (std::isfinite(max)) {
    std::vector<float> weights(logits.size());
    const float sum = kernels.exp_shifted(logits.data(), max, weights.data(),
                                          static_cast<std::uint32_t>(logits.size()));
    logsumexp = static_cast<float>(static_cast<double>(max) + std::log(static_cast<double>(sum)));
  }
  const auto logprob = [&](TokenId token) {
    const float logit = logits[token];
    if (logit == kInf) return logsumexp == kInf ? 0.0F : -9999.0F;
    if (!(logit > -kInf) || logsumexp == kInf) return -9999.0F;
    return std::clamp(logit - logsumexp, -9999.0F, 0.0F);
  };
  result.logprob = logprob(result.token);
  for (std::size_t i = 0; i < std::min<std::size_t>(*input.request->top_logprobs, order.size());
       ++i) {
    result.top.push_back({order[i], logprob(order[i])});
  }
}

}  // namespace

SampledToken sample_plainly(const KernelTable& kernels, const SampleInput& input) {
  const SamplingParams& s = input.request->sampling;
  const std::vector<float> logits = adjusted_logits(input);
  const auto best = std::max_element(logits.begin(), logits.end());
  SampledToken result;
  result.sequence = input.sequence;
  result.token = static_cast<TokenId>(best - logits.begin());
  result.all_banned = *best == -kInf;
  if (!result.all_banned && s.temperature != 0.0F && s.top_k != 1 && s.top_p > 0.0F) {
    const double uniform = uniform01(
        {.seed = s.seed, .choice_index = s.choice_index, .position = input.history.size()});
    result.token = draw_plainly(kernels, logits, s, uniform);
  }
  if (input.request->top_logprobs.has_value()) add_logprobs(kernels, input, result);
  return result;
}

}  // namespace kvasir::runtime::testing
