#include "runtime/sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvasir::runtime {

float logprob_of(float logit, float logsumexp) {
  const float logprob = logit - logsumexp;
  if (std::isnan(logprob)) {
    // inf - inf: a logit of +inf takes all the probability there is, NaN and -inf have none.
    return logit > 0.0F ? 0.0F : kOffListLogprob;
  }
  return std::clamp(logprob, kOffListLogprob, 0.0F);
}

void select_top(std::span<const float> logits, float logsumexp, std::uint32_t count,
                std::vector<TokenLogprob>& top) {
  const std::size_t wanted = std::min<std::size_t>(count, logits.size());
  top.clear();
  if (wanted == 0) return;
  top.reserve(wanted + 1);
  // `top` holds raw logits in descending order while it is filled. Ids ascend, so that an equal
  // logit goes behind those already there, and out when the list is full.
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const float logit =
        std::isnan(logits[id]) ? -std::numeric_limits<float>::infinity() : logits[id];
    if (top.size() == wanted && !(logit > top.back().logprob)) continue;
    const auto place = std::upper_bound(
        top.begin(), top.end(), logit,
        [](float value, const TokenLogprob& entry) { return value > entry.logprob; });
    top.insert(place, TokenLogprob{static_cast<TokenId>(id), logit});
    if (top.size() > wanted) top.pop_back();
  }
  for (TokenLogprob& entry : top) entry.logprob = logprob_of(entry.logprob, logsumexp);
}

}  // namespace kvasir::runtime
