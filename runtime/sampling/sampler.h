// From a row of raw logits to one token: penalties, bias, bans, temperature, top-k, min-p, top-p, then the draw, whose
// randomness is a function of (seed, choice, position). Logprobs are of the raw logits, before all of that.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/request.h"
#include "core/step_plan.h"
#include "runtime/kernels/kernel_table.h"

namespace kvasir::runtime {

struct SampleInput {
  SequenceId sequence{};
  std::span<const float> logits;      // [vocab_size], raw
  std::span<const TokenId> history;   // prompt and generated tokens so far
  std::uint32_t num_prompt_tokens = 0;
  const Request* request = nullptr;
};

/// Working memory of one worker, sized once.
struct SamplerScratch {
  explicit SamplerScratch(std::uint32_t vocab_size);
  std::vector<float> adjusted;       // [vocab_size]
  std::vector<float> probabilities;  // [vocab_size]
  std::vector<TokenId> candidates;   // [vocab_size]
};

/// The position of the drawn token is history.size(). `all_banned` is set when every token is at -inf.
[[nodiscard]] SampledToken sample(const KernelTable& kernels, const SampleInput& input, SamplerScratch& scratch);

}  // namespace kvasir::runtime
