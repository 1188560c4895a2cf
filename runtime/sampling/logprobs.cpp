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

void select_top(RowScan& row, float logsumexp, std::uint32_t count, CandidateBuffer& buffer,
                std::vector<TokenLogprob>& top) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::size_t wanted = std::min<std::size_t>(count, row.logits().size());
  top.clear();
  if (wanted == 0) return;
  top.reserve(wanted);
  const auto score = [](float logit) { return logit; };
  const std::size_t num_collected =
      collect_heaviest(row, row.below_heaviest(wanted), wanted, score, buffer);
  for (const Candidate candidate : sort_heaviest(buffer, num_collected, wanted)) {
    const TokenId token = token_of(candidate);
    top.push_back({token, logprob_of(row.logits()[token], logsumexp)});
  }
  // What is left is at -inf or NaN, which tie.
  for (TokenId token = 0; top.size() < wanted; ++token) {
    if (!(row.logits()[token] > -kInfinity)) {
      top.push_back({token, logprob_of(-kInfinity, logsumexp)});
    }
  }
}

}  // namespace kvasir::runtime
