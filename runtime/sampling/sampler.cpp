#include "runtime/sampling/sampler.h"

#include "core/check.h"
#include "core/rng.h"
#include "runtime/sampling/logprobs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace kvasir::runtime {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::size_t num_generated(const SampleInput& input) {
  return input.history.size() -
         std::min<std::size_t>(input.num_prompt_tokens, input.history.size());
}

bool penalises(const SamplingParams& sampling) {
  return sampling.repetition_penalty != 1.0F || sampling.presence_penalty != 0.0F ||
         sampling.frequency_penalty != 0.0F;
}

bool bans_stop_tokens(const SampleInput& input) {
  return num_generated(input) < input.request->stop.min_tokens;
}

bool changes_logits(const SampleInput& input) {
  const SamplingParams& sampling = input.request->sampling;
  return penalises(sampling) || !sampling.logit_bias.empty() || bans_stop_tokens(input);
}

bool takes_best(const SamplingParams& sampling) {
  return sampling.temperature == 0.0F || sampling.top_k == 1 || sampling.top_p <= 0.0F;
}

struct Penalties {
  float repetition = 1.0F, presence = 0.0F, frequency = 0.0F;
};

/// What the penalties make of one logit; one at its default changes no bit.
float penalised(float logit, std::uint32_t num_generated, Penalties penalties) {
  // Which of the two is as good as random: a look-up costs less than a wrong guess.
  const std::array<float, 2> either = {logit * penalties.repetition, logit / penalties.repetition};
  logit = either[logit > 0.0F ? 1 : 0];
  if (num_generated == 0) return logit;
  return logit - (penalties.presence + penalties.frequency * static_cast<float>(num_generated));
}

/// Penalises each distinct token of the history once. scratch.counts is all zero before and after.
void apply_penalties(const SampleInput& input, SamplerScratch& scratch) {
  constexpr std::uint32_t kSeen = 1U << 31U;  // beside the count: a prompt's token has none
  std::uint32_t* const counts = scratch.counts.data();
  float* const logits = scratch.adjusted.data();
  const SamplingParams& sampling = input.request->sampling;
  const Penalties penalties = {sampling.repetition_penalty, sampling.presence_penalty,
                               sampling.frequency_penalty};
  const std::size_t num_prompt = input.history.size() - num_generated(input);
  for (const TokenId token : input.history.first(num_prompt)) counts[token] |= kSeen;
  for (const TokenId token : input.history.subspan(num_prompt)) {
    counts[token] = (counts[token] + 1) | kSeen;
  }
  for (const TokenId token : input.history) {
    const std::uint32_t count = counts[token];
    if (count == 0) continue;
    counts[token] = 0;
    logits[token] = penalised(bounded(logits[token]), count - kSeen, penalties);
  }
}

/// Fills scratch.adjusted: the raw logits with everything that comes before the temperature.
/// Infinities and NaN may be left in it: whoever reads it bounds them.
void adjust(const SampleInput& input, SamplerScratch& scratch) {
  const SamplingParams& sampling = input.request->sampling;
  std::copy(input.logits.begin(), input.logits.end(), scratch.adjusted.begin());
  if (penalises(sampling)) apply_penalties(input, scratch);
  for (const auto& [token, bias] : sampling.logit_bias) {
    scratch.adjusted[token] = bounded(scratch.adjusted[token]) + bias;
  }
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

/// Chooses from the row that was scanned last, whose maximum is `best`.
void choose(const KernelTable& kernels, const SampleInput& input, float best,
            SamplerScratch& scratch, SampledToken& result) {
  const SamplingParams& sampling = input.request->sampling;
  result.all_banned = best == -kInfinity;
  if (result.all_banned) return;
  result.token = takes_best(sampling)
                     ? scratch.row.first_above(std::nextafter(best, -kInfinity))
                     : draw(kernels, scratch.row, best, sampling, uniform_of(input), scratch.draw);
}

/// Of the row that was scanned last, the raw one, whose maximum is `maximum`.
void add_logprobs(const KernelTable& kernels, const SampleInput& input, float maximum,
                  SamplerScratch& scratch, SampledToken& result) {
  const float logsumexp = kernels.logsumexp(input.logits.data(), maximum,
                                            static_cast<std::uint32_t>(input.logits.size()));
  result.logprob = logprob_of(input.logits[result.token], logsumexp);
  select_top(scratch.row, logsumexp, *input.request->top_logprobs, scratch.draw.candidates,
             result.top);
}

}  // namespace

SamplerScratch::SamplerScratch(std::uint32_t vocab_size)
    : adjusted(vocab_size), counts(vocab_size), row(vocab_size), draw(vocab_size) {}

std::uint64_t SamplerScratch::bytes(std::uint32_t vocab_size) {
  return std::uint64_t{vocab_size} * (sizeof(float) + sizeof(std::uint32_t)) +
         RowScan::bytes(vocab_size) + DrawScratch::bytes(vocab_size);
}

SampledToken sample(const KernelTable& kernels, const SampleInput& input, SamplerScratch& scratch) {
  KVASIR_CHECK(input.request != nullptr);
  KVASIR_CHECK(!input.logits.empty() && input.logits.size() == scratch.adjusted.size());
  SampledToken result;
  result.sequence = input.sequence;
  const bool changes = changes_logits(input);
  if (changes) adjust(input, scratch);
  float maximum =
      scratch.row.scan(kernels, changes ? std::span<const float>(scratch.adjusted) : input.logits);
  choose(kernels, input, bounded(maximum), scratch, result);
  if (input.request->top_logprobs.has_value()) {
    if (changes) maximum = scratch.row.scan(kernels, input.logits);
    add_logprobs(kernels, input, maximum, scratch, result);
  }
  return result;
}

}  // namespace kvasir::runtime
