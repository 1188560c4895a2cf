// Logprobs of one row of raw logits: before temperature, penalties, bias and bans. Which token was
// chosen is the sampler's business.
#pragma once

#include "core/ids.h"
#include "core/logprob.h"
#include "core/step_plan.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::runtime {

/// logit - logsumexp, kept within [kOffListLogprob, 0]: rounding never makes it positive, and it is
/// always finite.
[[nodiscard]] float logprob_of(float logit, float logsumexp);

/// The `count` best tokens (or all, if the vocabulary is smaller), best first, ties to the lowest
/// id; NaN counts as -inf. Selects in one pass without sorting the vocabulary.
void select_top(std::span<const float> logits, float logsumexp, std::uint32_t count,
                std::vector<TokenLogprob>& top);

}  // namespace kvasir::runtime
