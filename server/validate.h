// The one judge of request fields for both doors: ranges, counts and combinations, so that the same
// request gets the same verdict over REST and gRPC. Types are the door's; what depends on the
// prompt's token count is generate_service's.
#pragma once

#include "core/clock.h"
#include "core/request.h"
#include "core/result.h"
#include "server/request_fields.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvasir::server {

/// Bounds on what one request may hold.
inline constexpr std::size_t kMaxPrompts = 128;
inline constexpr std::size_t kMaxMessages = 2048;
inline constexpr std::int64_t kMaxChoices = 128;  // n, and n times the number of prompts
inline constexpr std::size_t kMaxStopStrings = 16;
inline constexpr std::size_t kMaxStopBytes = 256;
inline constexpr std::size_t kMaxStopTokenIds = 256;
inline constexpr std::size_t kMaxLogitBiases = 1024;
inline constexpr std::size_t kMaxCacheSaltBytes = 1024;
inline constexpr std::int64_t kMaxTopLogprobs = 20;
/// Logprobs of one request: choices x max_tokens x (1 + top_logprobs). An entry is 8 bytes while it
/// waits and some 80 as JSON, so that the largest answer is below 100 MiB.
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
  std::uint64_t cache_salt = 0;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool include_stop_str_in_output = false;
  bool return_token_ids = false;
  bool echo = false;                             // completions
  std::optional<std::uint32_t> prompt_logprobs;  // absent: none
};

/// Errors: kInvalidValue or kMissingParameter, with the field's path in `param`. `vocab_size` is
/// the logits width.
[[nodiscard]] Result<GenerateParams> validate(const CompletionFields& fields,
                                              std::uint32_t vocab_size);
[[nodiscard]] Result<GenerateParams> validate(const ChatFields& fields, std::uint32_t vocab_size);
/// What max_tokens may be at most where logprobs are asked for (kMaxLogprobEntries).
[[nodiscard]] std::uint64_t max_tokens_with_logprobs(const GenerateParams& params,
                                                     std::size_t num_prompts);
[[nodiscard]] Result<void> validate_messages(const std::vector<text::ChatMessage>& messages);
/// Each id in [0, vocab_size). `path` is what `param` gets the index appended to.
[[nodiscard]] Result<void> validate_token_ids(const std::vector<std::int64_t>& ids,
                                              std::uint32_t vocab_size, const std::string& path);

}  // namespace kvasir::server
