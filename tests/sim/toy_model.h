// A language model of a few lines: its "key and value" of a position is a hash of everything that
// the position may depend on, and its next token is a function of that hash. So a wrong block
// anywhere shows up as a wrong value.
#pragma once

#include "core/ids.h"
#include "core/request.h"
#include "core/rng.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::sim {

inline constexpr TokenId kVocabSize = 97;

/// What the cache must hold before the first token: blocks of other salts must not pass for ours.
inline std::uint64_t empty_prefix(std::uint64_t cache_salt) { return mix64(cache_salt ^ 0x5eed); }

/// The value stored at a position, from the one before it and the position's token.
inline std::uint64_t extend_prefix(std::uint64_t previous, TokenId token) {
  return mix64(previous * 31 + token);
}

/// The token after the position whose stored value this is.
inline TokenId next_token(std::uint64_t stored, const SamplingParams& sampling) {
  return static_cast<TokenId>(mix64(stored ^ mix64(sampling.seed) ^ sampling.choice_index) %
                              kVocabSize);
}

/// The logprob of a prompt's token after the position whose stored value this is.
inline float prompt_logprob(std::uint64_t stored, TokenId token) {
  return -static_cast<float>(mix64(stored ^ token) % 4096);
}

/// What a request generates when it is alone in the world: at most `max_total_tokens` with its
/// prompt.
inline std::vector<TokenId> generate_alone(const Request& request, std::uint32_t max_total_tokens) {
  std::uint64_t stored = empty_prefix(request.cache_salt);
  for (const TokenId token : request.prompt_tokens) stored = extend_prefix(stored, token);
  std::vector<TokenId> generated;
  while (request.prompt_tokens.size() + generated.size() < max_total_tokens) {
    generated.push_back(next_token(stored, request.sampling));
    for (const TokenId stop : request.stop.stop_token_ids) {
      if (generated.back() == stop) return generated;
    }
    stored = extend_prefix(stored, generated.back());
  }
  return generated;
}

}  // namespace kvasir::sim
