#include "runtime/sampling/prompt_score.h"

#include "core/check.h"
#include "runtime/sampling/logprobs.h"

#include <algorithm>
#include <limits>

namespace kvasir::runtime {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Tokens that come before `token` when all are sorted by falling logit, ties by lowest id.
std::uint32_t num_before(std::span<const float> logits, TokenId token) {
  const float logit = logits[token];
  const bool is_number = logit > -kInfinity;
  std::uint32_t count = 0;
  if (is_number) {
    for (const float other : logits.first(token)) count += other >= logit ? 1U : 0U;
    for (const float other : logits.subspan(token)) count += other > logit ? 1U : 0U;
  } else {
    // All numbers come before it, and of those that are none the lower ids.
    for (const float other : logits.subspan(token)) count += other > -kInfinity ? 1U : 0U;
    count += token;
  }
  return count;
}

}  // namespace

PromptToken score_prompt_token(const KernelTable& kernels, std::span<const float> logits,
                               TokenId token, std::span<TokenLogprob> top,
                               SamplerScratch& scratch) {
  KVASIR_CHECK(token < logits.size(), "token " << token);
  const float maximum = scratch.row.scan(kernels, logits);
  const float logsumexp =
      kernels.logsumexp(logits.data(), maximum, static_cast<std::uint32_t>(logits.size()));
  select_top(scratch.row, logsumexp, static_cast<std::uint32_t>(top.size()),
             scratch.draw.candidates, scratch.top);
  std::copy(scratch.top.begin(), scratch.top.end(), top.begin());
  return {.logprob = logprob_of(logits[token], logsumexp), .rank = num_before(logits, token) + 1};
}

}  // namespace kvasir::runtime
