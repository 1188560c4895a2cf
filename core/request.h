// What one sequence asks of the engine, after validation: everything here is in range. Wire formats
// and the text side (stop strings, templates) stay in server/ and text/; n > 1 and lists of prompts
// are several of these.
#pragma once

#include "core/clock.h"
#include "core/ids.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace kvasir {

/// How the next token is chosen. The defaults change nothing.
struct SamplingParams {
  float temperature = 1.0F;  // 0 is greedy: the argmax, ties to the lowest id
  float top_p = 1.0F;        // 0 behaves as the single best token
  std::uint32_t top_k = 0;   // 0 is off
  float min_p = 0.0F;
  float presence_penalty = 0.0F;                      // over generated tokens
  float frequency_penalty = 0.0F;                     // over generated tokens
  float repetition_penalty = 1.0F;                    // over prompt and generated tokens; 1 is off
  std::vector<std::pair<TokenId, float>> logit_bias;  // ids are below the logits width
  std::uint64_t seed = 0;
  std::uint32_t choice_index = 0;  // k-th choice of its prompt: part of the random key
};

/// When a sequence ends by what it generates. Stop strings are the server's: it cancels with
/// CancelCause::kStopString.
struct StopRules {
  std::uint32_t max_tokens = 0;  // >= 1, or 0 with prompt_logprobs: the prompt alone is computed
  std::uint32_t min_tokens =
      0;  // stop tokens are banned from sampling before this many were generated
  std::vector<TokenId>
      stop_token_ids;  // end of generation, and the request's own; ascending, unique
};

/// One sequence as the engine takes it.
struct Request {
  std::vector<TokenId> prompt_tokens;  // never empty
  SamplingParams sampling;
  StopRules stop;
  std::optional<std::uint32_t> top_logprobs;  // absent: no logprobs; 0: only the chosen token's
  /// Absent: none; else the logprob and rank of every prompt token but the first, and so many best
  /// tokens beside it. Such a request takes nothing from the prefix cache: cached positions have no
  /// logits.
  std::optional<std::uint32_t> prompt_logprobs;
  /// Sequences of one submission with the same prompt carry the same number: their prompt is
  /// computed once and its blocks are shared. 0: alone.
  std::uint64_t fork_group = 0;
  std::int32_t priority = 0;  // lower is served first
  std::optional<TimePoint> deadline;
  std::uint64_t cache_salt =
      0;  // part of the prefix cache's key: equal prefixes with other salts share nothing
};

}  // namespace kvasir
