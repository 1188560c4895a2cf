// Logprobs of one row of raw logits: before temperature, penalties, bias and bans. Which token was
// chosen is the sampler's business.
#pragma once

#include "core/ids.h"
#include "core/logprob.h"
#include "core/step_plan.h"
#include "runtime/sampling/candidates.h"
#include "runtime/sampling/row_scan.h"

#include <cstdint>
#include <vector>

namespace kvasir::runtime {

/// logit - logsumexp, kept within [kOffListLogprob, 0]: rounding never makes it positive, and it is
/// always finite.
[[nodiscard]] float logprob_of(float logit, float logsumexp);

/// The `count` best tokens (or all, if the vocabulary is smaller) of the row that was scanned last,
/// best first, ties to the lowest id; NaN counts as -inf. Does not sort the vocabulary.
void select_top(RowScan& row, float logsumexp, std::uint32_t count, CandidateBuffer& buffer,
                std::vector<TokenLogprob>& top);

}  // namespace kvasir::runtime
