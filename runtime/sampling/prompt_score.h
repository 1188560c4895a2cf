// How likely a row of raw logits makes one given token, the next of a prompt: its logprob, its rank
// and the best tokens beside it. The same arithmetic as a sampled token's logprobs, so that the
// best token's number here is the same float there.
#pragma once

#include "core/ids.h"
#include "core/step_plan.h"
#include "runtime/kernels/kernel_table.h"
#include "runtime/sampling/sampler.h"

#include <cstdint>
#include <span>

namespace kvasir::runtime {

/// Scores `token` by `logits` [vocab_size] and fills `top`, whose size is how many best tokens are
/// wanted: at most vocab_size. NaN counts as -inf, in ranks too.
[[nodiscard]] PromptToken score_prompt_token(const KernelTable& kernels,
                                             std::span<const float> logits, TokenId token,
                                             std::span<TokenLogprob> top, SamplerScratch& scratch);

}  // namespace kvasir::runtime
