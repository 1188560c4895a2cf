// From a row of raw logits to one token: penalties, bias, bans, temperature, top-k, min-p, top-p,
// then the draw, whose randomness is a function of (seed, choice, position). Logprobs are of the
// raw logits, before all of that.
//
// The steps, in this order; a step at its default changes no bit:
//  1. NaN logits count as -inf, +inf as the largest float.
//  2. repetition_penalty: the logit of every token of the history (prompt and generated) is divided
//  by it if positive,
//     else multiplied by it, once however often it occurred.
//  3. presence and frequency penalty: logit -= presence + frequency * count, over generated tokens
//  that occurred.
//  4. logit_bias is added.
//  5. Bans: while fewer than min_tokens were generated, stop tokens are at -inf.
//  6. temperature 0 (as well as top_k 1 and top_p 0) takes the argmax of what this gives, ties to
//  the lowest id.
//  7. Otherwise weights are exp((logit - max) / temperature). top_k keeps the k heaviest (ties to
//  the lowest id), min_p
//     those of at least min_p times the heaviest, top_p the smallest set of the heaviest left whose
//     sum reaches top_p times the sum of all that are left, the token that crosses included.
//  8. The draw: uniform01 times the kept sum, walked in a fixed order.
// Sums are in double over descending weight (ties by id), over ascending ids of what min_p left, or
// over fixed vocabulary ranges (softmax_sums of kernel_table.h): the same bytes every time.
#pragma once

#include "core/request.h"
#include "core/step_plan.h"
#include "runtime/kernels/kernel_table.h"
#include "runtime/sampling/draw.h"
#include "runtime/sampling/row_scan.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::runtime {

struct SampleInput {
  SequenceId sequence{};
  std::span<const float> logits;     // [vocab_size], raw
  std::span<const TokenId> history;  // prompt and generated tokens so far
  std::uint32_t num_prompt_tokens = 0;
  const Request* request = nullptr;
};

/// Working memory of one worker, sized once.
struct SamplerScratch {
  explicit SamplerScratch(std::uint32_t vocab_size);
  /// What construction allocates.
  [[nodiscard]] static std::uint64_t bytes(std::uint32_t vocab_size);
  std::vector<float> adjusted;        // [vocab_size]
  std::vector<std::uint32_t> counts;  // [vocab_size], of the history's tokens; 0 between calls
  RowScan row;
  DrawScratch draw;
  std::vector<TokenLogprob> top;  // of a prompt's token: a few
};

/// The position of the drawn token is history.size(). `all_banned` is set when every token is at
/// -inf. Allocates nothing but the result's list of top logprobs.
[[nodiscard]] SampledToken sample(const KernelTable& kernels, const SampleInput& input,
                                  SamplerScratch& scratch);

}  // namespace kvasir::runtime
