// The one judge of request fields for both doors, so that the same request gets the same verdict
// over REST and gRPC: first each field by itself, in the order of the field table, then what they
// must be together. Types are the door's; what depends on the prompt's token count is
// generate_service's.
#pragma once

#include "core/clock.h"
#include "core/request.h"
#include "core/result.h"
#include "server/request_fields.h"
#include "server/request_limits.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvasir::server {

/// Logprobs of one request: choices x max_tokens x (1 + top_logprobs), and with those of prompts
/// (prompt_answer.h). An entry is some 80 bytes as JSON, so that the largest answer is below 100
/// MiB.
inline constexpr std::uint64_t kMaxLogprobEntries = 1U << 20U;

/// A request whose fields are in range. `sampling.seed` and the token limits that depend on the
/// prompt are still open.
struct GenerateParams {
  SamplingParams sampling;  // choice_index 0; seed only meaningful when has_seed
  bool has_seed = false;
  std::optional<std::uint64_t>
      max_tokens;  // absent: what is left; may be past every context; 0 only with echo
  std::uint64_t min_tokens = 0;
  std::uint32_t num_choices = 1;  // n, for each prompt
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;        // the request's own; ascending, unique
  std::optional<std::uint32_t> top_logprobs;  // absent: no logprobs
  std::int32_t priority = 0;
  std::optional<Duration> timeout;
  std::optional<std::string> cache_salt;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool include_stop_str_in_output = false;
  bool return_token_ids = false;
  std::optional<bool> kv_receipt;
  bool echo = false;                             // completions
  std::optional<std::uint32_t> prompt_logprobs;  // absent: none
};

/// What fields are judged by.
struct ValidationBounds {
  std::uint32_t vocab_size = 0;  // the logits width
  const RequestLimits& limits;
};

/// Errors: kInvalidValue, kMissingParameter or kUnsupportedParameter, with the field's path in
/// `param`.
[[nodiscard]] Result<GenerateParams> validate(const CompletionFields& fields,
                                              const ValidationBounds& bounds);
[[nodiscard]] Result<GenerateParams> validate(const ChatFields& fields,
                                              const ValidationBounds& bounds);
[[nodiscard]] Result<void> validate(const TokenizeFields& fields, const ValidationBounds& bounds);
[[nodiscard]] Result<void> validate(const DetokenizeFields& fields, const ValidationBounds& bounds);
/// What max_tokens may be at most where logprobs are asked for (kMaxLogprobEntries).
[[nodiscard]] std::uint64_t max_tokens_with_logprobs(const GenerateParams& params,
                                                     std::size_t num_prompts);

}  // namespace kvasir::server
