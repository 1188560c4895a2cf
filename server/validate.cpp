#include "server/validate.h"

#include "core/rng.h"
#include "server/shown_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

namespace kvasir::server {
namespace {

/// The first failure of a request: checks after it do nothing.
class Verdict {
 public:
  void require(bool holds, const std::string& param, std::string_view allowed,
               const std::string& value) {
    if (holds || error_) return;
    error_ = Error{ErrorCode::kInvalidValue,
                   param + " must be " + std::string(allowed) + ", not " + value, param};
  }
  void missing(const std::string& param, std::string message) {
    if (!error_) error_ = Error{ErrorCode::kMissingParameter, std::move(message), param};
  }
  void merge(const Result<void>& result) {
    if (!result && !error_) error_ = result.error();
  }
  [[nodiscard]] Result<void> take() {
    if (error_) return tl::unexpected<Error>(std::move(*error_));
    return {};
  }

 private:
  std::optional<Error> error_;
};

struct Range {
  double low = 0;
  double high = 0;
  bool low_is_open = false;
  std::string_view text;
};

/// NaN fails every comparison that must hold, and infinities lie outside of every range.
float number_in(Verdict& verdict, const std::optional<double>& value, const char* name,
                const Range& range, float when_absent) {
  if (!value) return when_absent;
  const double number = *value;
  const bool above = range.low_is_open ? number > range.low : number >= range.low;
  verdict.require(std::isfinite(number) && above && number <= range.high, name, range.text,
                  shown_value(number));
  return static_cast<float>(number);
}

struct IntegerRange {
  std::int64_t low = 0;
  std::int64_t high = 0;
  std::string_view text;
};

std::int64_t integer_in(Verdict& verdict, const std::optional<std::int64_t>& value,
                        const char* name, const IntegerRange& range, std::int64_t when_absent) {
  if (!value) return when_absent;
  verdict.require(*value >= range.low && *value <= range.high, name, range.text,
                  shown_value(*value));
  return *value;
}

void read_sampling(Verdict& verdict, const GenerateFields& fields, SamplingParams& sampling) {
  constexpr Range kUnit{0, 1, false, "a number from 0 to 1"};
  constexpr Range kPenalty{-2, 2, false, "a number from -2 to 2"};
  sampling.temperature = number_in(verdict, fields.temperature, "temperature",
                                   {0, 2, false, "a number from 0 to 2"}, 1.0F);
  sampling.top_p = number_in(verdict, fields.top_p, "top_p", kUnit, 1.0F);
  sampling.min_p = number_in(verdict, fields.min_p, "min_p", kUnit, 0.0F);
  sampling.presence_penalty =
      number_in(verdict, fields.presence_penalty, "presence_penalty", kPenalty, 0.0F);
  sampling.frequency_penalty =
      number_in(verdict, fields.frequency_penalty, "frequency_penalty", kPenalty, 0.0F);
  sampling.repetition_penalty = number_in(verdict, fields.repetition_penalty, "repetition_penalty",
                                          {0, 10, true, "a number above 0 and at most 10"}, 1.0F);
  // A positive double may still be zero as a float, and the penalty divides.
  if (fields.repetition_penalty) {
    verdict.require(sampling.repetition_penalty >= std::numeric_limits<float>::min(),
                    "repetition_penalty", "a number above 0 and at most 10",
                    shown_value(*fields.repetition_penalty));
  }
  constexpr std::int64_t kMaxTopK = std::numeric_limits<std::int32_t>::max();
  const std::int64_t top_k =
      integer_in(verdict, fields.top_k, "top_k",
                 {-1, kMaxTopK, "-1 or 0 (off), or an integer from 1 to 2147483647"}, 0);
  sampling.top_k = top_k > 0 ? static_cast<std::uint32_t>(std::min(top_k, kMaxTopK)) : 0;
}

void read_logit_bias(Verdict& verdict, const GenerateFields& fields, std::uint32_t vocab_size,
                     SamplingParams& sampling) {
  verdict.require(fields.logit_bias.size() <= kMaxLogitBiases, "logit_bias",
                  "a map of at most 1024 entries",
                  "one of " + std::to_string(fields.logit_bias.size()));
  if (fields.logit_bias.size() > kMaxLogitBiases) return;
  std::set<TokenId> seen;
  for (const auto& [key, bias] : fields.logit_bias) {
    std::uint32_t token = 0;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token);
    const bool canonical = parsed.ec == std::errc() && parsed.ptr == key.data() + key.size() &&
                           (key.size() == 1 || key.front() != '0');
    verdict.require(
        canonical && token < vocab_size, "logit_bias",
        "a map whose keys are token ids in decimal from 0 to " + std::to_string(vocab_size - 1),
        "a map with the key " + shown_value(key));
    verdict.require(std::isfinite(bias) && bias >= -100 && bias <= 100, "logit_bias",
                    "a map whose values are numbers from -100 to 100",
                    "a map with the value " + shown_value(bias));
    verdict.require(seen.insert(token).second, "logit_bias", "a map that names each token once",
                    "a map with the token " + std::to_string(token) + " twice");
    sampling.logit_bias.emplace_back(token, static_cast<float>(bias));
  }
}

void read_stops(Verdict& verdict, const GenerateFields& fields, std::uint32_t vocab_size,
                GenerateParams& params) {
  verdict.require(fields.stop.size() <= kMaxStopStrings, "stop", "at most 16 strings",
                  std::to_string(fields.stop.size()) + " strings");
  for (const std::string& stop : fields.stop) {
    verdict.require(!stop.empty(), "stop", "strings of 1 to 256 bytes", "an empty one");
    verdict.require(stop.size() <= kMaxStopBytes, "stop", "strings of 1 to 256 bytes",
                    "one of " + std::to_string(stop.size()) + " bytes, " + shown_value(stop));
  }
  params.stop = fields.stop;
  verdict.require(fields.stop_token_ids.size() <= kMaxStopTokenIds, "stop_token_ids",
                  "at most 256 token ids", std::to_string(fields.stop_token_ids.size()) + " ids");
  if (fields.stop_token_ids.size() > kMaxStopTokenIds) return;
  verdict.merge(validate_token_ids(fields.stop_token_ids, vocab_size, "stop_token_ids"));
  for (const std::int64_t id : fields.stop_token_ids)
    params.stop_token_ids.push_back(static_cast<TokenId>(id));
  std::sort(params.stop_token_ids.begin(), params.stop_token_ids.end());
  params.stop_token_ids.erase(
      std::unique(params.stop_token_ids.begin(), params.stop_token_ids.end()),
      params.stop_token_ids.end());
}

/// Two requests share cached blocks only when their salts are equal; tokens are compared on a hit,
/// so a collision of this hash could show no more than that some other salt's prefix was there. 0
/// is "no salt".
std::uint64_t salt_hash(std::string_view salt) {
  std::uint64_t hash = mix64(salt.size());
  for (const char c : salt) hash = mix64(hash ^ static_cast<unsigned char>(c));
  return hash == 0 ? 1 : hash;
}

void read_shared(Verdict& verdict, const GenerateFields& fields, std::uint32_t vocab_size,
                 std::size_t num_prompts, GenerateParams& params) {
  constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();
  const std::int64_t n =
      integer_in(verdict, fields.n, "n", {1, kMaxChoices, "an integer from 1 to 128"}, 1);
  verdict.require(n < 1 || n > kMaxChoices || num_prompts > kMaxPrompts ||
                      static_cast<std::uint64_t>(n) * num_prompts <= kMaxChoices,
                  "n", "such that n times the number of prompts is at most 128",
                  std::to_string(n) + " with " + std::to_string(num_prompts) + " prompts");
  params.num_choices = static_cast<std::uint32_t>(std::clamp<std::int64_t>(n, 1, kMaxChoices));
  if (fields.max_tokens) {
    params.max_tokens = static_cast<std::uint64_t>(integer_in(
        verdict, fields.max_tokens, "max_tokens", {1, kInt64Max, "an integer of at least 1"}, 1));
  }
  params.min_tokens = static_cast<std::uint64_t>(integer_in(
      verdict, fields.min_tokens, "min_tokens", {0, kInt64Max, "an integer of at least 0"}, 0));
  read_sampling(verdict, fields, params.sampling);
  read_logit_bias(verdict, fields, vocab_size, params.sampling);
  read_stops(verdict, fields, vocab_size, params);
  params.has_seed = fields.seed.has_value();
  params.sampling.seed = static_cast<std::uint64_t>(fields.seed.value_or(0));
  params.priority = static_cast<std::int32_t>(integer_in(
      verdict, fields.priority, "priority",
      {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max(),
       "an integer from -2147483648 to 2147483647"},
      0));
  if (fields.timeout_ms) {
    constexpr std::int64_t kWeekMs = 7LL * 24 * 3600 * 1000;
    const std::int64_t timeout_ms = integer_in(verdict, fields.timeout_ms, "timeout_ms",
                                               {1, kWeekMs, "an integer from 1 to 604800000"}, 1);
    // Clamped, since a Duration counts nanoseconds: a refused value must not overflow it.
    params.timeout = std::chrono::milliseconds(std::clamp<std::int64_t>(timeout_ms, 1, kWeekMs));
  }
  if (fields.cache_salt) {
    verdict.require(!fields.cache_salt->empty() && fields.cache_salt->size() <= kMaxCacheSaltBytes,
                    "cache_salt", "a string of 1 to 1024 bytes",
                    "one of " + std::to_string(fields.cache_salt->size()) + " bytes");
    params.cache_salt = salt_hash(*fields.cache_salt);
  }
  verdict.require(!fields.has_stream_options || fields.stream, "stream_options",
                  "absent unless stream is true", "given without it");
  params.ignore_eos = fields.ignore_eos;
  params.skip_special_tokens = fields.skip_special_tokens;
  params.include_stop_str_in_output = fields.include_stop_str_in_output;
  params.return_token_ids = fields.return_token_ids;
}

void check_min_tokens(Verdict& verdict, const GenerateParams& params) {
  verdict.require(!params.max_tokens || params.min_tokens <= *params.max_tokens, "min_tokens",
                  "at most max_tokens (" + std::to_string(params.max_tokens.value_or(0)) + ")",
                  std::to_string(params.min_tokens));
}

/// A whole answer keeps its logprobs until its end, so their number is bounded beforehand.
void check_logprob_entries(Verdict& verdict, const GenerateParams& params,
                           std::size_t num_prompts) {
  if (!params.top_logprobs || num_prompts > kMaxPrompts) return;
  const std::uint64_t most = max_tokens_with_logprobs(params, num_prompts);
  const std::uint64_t wanted = params.max_tokens.value_or(params.min_tokens);
  verdict.require(wanted <= most, params.max_tokens ? "max_tokens" : "min_tokens",
                  "at most " + std::to_string(most) + " with so many choices and logprobs",
                  std::to_string(wanted));
}

void check_prompts(Verdict& verdict, const std::vector<PromptInput>& prompts,
                   std::uint32_t vocab_size) {
  if (prompts.empty())
    verdict.missing("prompt", "prompt must be given and must not be an empty list");
  verdict.require(prompts.size() <= kMaxPrompts, "prompt", "at most 128 prompts",
                  std::to_string(prompts.size()) + " prompts");
  if (prompts.size() > kMaxPrompts) return;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::string path = prompts.size() == 1 ? "prompt" : "prompt[" + std::to_string(i) + "]";
    if (const auto* text = std::get_if<std::string>(&prompts[i])) {
      verdict.require(!text->empty(), path, "a text of at least one byte", "an empty one");
    } else {
      const auto& ids = std::get<std::vector<std::int64_t>>(prompts[i]);
      verdict.require(!ids.empty(), path, "a list of at least one token id", "an empty one");
      verdict.merge(validate_token_ids(ids, vocab_size, path));
    }
  }
}

std::optional<std::uint32_t> chat_logprobs(Verdict& verdict, const ChatFields& fields) {
  const std::int64_t top = integer_in(verdict, fields.top_logprobs, "top_logprobs",
                                      {0, kMaxTopLogprobs, "an integer from 0 to 20"}, 0);
  verdict.require(!fields.top_logprobs || fields.logprobs, "top_logprobs",
                  "absent unless logprobs is true", shown_value(top) + " without it");
  if (!fields.logprobs) return std::nullopt;
  return static_cast<std::uint32_t>(top);
}

}  // namespace

Result<GenerateParams> validate(const CompletionFields& fields, std::uint32_t vocab_size) {
  Verdict verdict;
  GenerateParams params;
  read_shared(verdict, fields, vocab_size, fields.prompts.size(), params);
  check_min_tokens(verdict, params);
  if (fields.logprobs) {
    params.top_logprobs = static_cast<std::uint32_t>(integer_in(
        verdict, fields.logprobs, "logprobs", {0, kMaxTopLogprobs, "an integer from 0 to 20"}, 0));
  }
  check_logprob_entries(verdict, params, fields.prompts.size());
  check_prompts(verdict, fields.prompts, vocab_size);
  if (auto result = verdict.take(); !result) return tl::unexpected<Error>(result.error());
  return params;
}

Result<GenerateParams> validate(const ChatFields& fields, std::uint32_t vocab_size) {
  Verdict verdict;
  GenerateParams params;
  read_shared(verdict, fields, vocab_size, 1, params);
  if (fields.max_completion_tokens) {
    const std::int64_t value =
        integer_in(verdict, fields.max_completion_tokens, "max_completion_tokens",
                   {1, std::numeric_limits<std::int64_t>::max(), "an integer of at least 1"}, 1);
    verdict.require(!fields.max_tokens || *fields.max_tokens == value, "max_completion_tokens",
                    "equal to max_tokens when both are given (" +
                        shown_value(fields.max_tokens.value_or(0)) + ")",
                    shown_value(value));
    params.max_tokens = static_cast<std::uint64_t>(value);
  }
  check_min_tokens(verdict, params);
  params.top_logprobs = chat_logprobs(verdict, fields);
  check_logprob_entries(verdict, params, 1);
  verdict.merge(validate_messages(fields.messages));
  if (auto result = verdict.take(); !result) return tl::unexpected<Error>(result.error());
  return params;
}

std::uint64_t max_tokens_with_logprobs(const GenerateParams& params, std::size_t num_prompts) {
  const std::uint64_t per_token = std::uint64_t{1} + params.top_logprobs.value_or(0);
  const std::uint64_t choices = std::max<std::uint64_t>(num_prompts, 1) * params.num_choices;
  return kMaxLogprobEntries / (choices * per_token);
}

Result<void> validate_messages(const std::vector<text::ChatMessage>& messages) {
  constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                      "tool"};
  Verdict verdict;
  if (messages.empty()) verdict.missing("messages", "messages must hold at least one message");
  verdict.require(messages.size() <= kMaxMessages, "messages", "at most 2048 messages",
                  std::to_string(messages.size()) + " messages");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string path = "messages[" + std::to_string(i) + "]";
    const text::ChatMessage& message = messages[i];
    verdict.require(std::find(kRoles.begin(), kRoles.end(), message.role) != kRoles.end(),
                    path + ".role", "system, developer, user, assistant or tool",
                    shown_value(message.role));
    if (message.role == "tool" && !message.tool_call_id) {
      verdict.missing(path + ".tool_call_id",
                      path + ".tool_call_id must be given for the role \"tool\"");
    }
  }
  return verdict.take();
}

Result<void> validate_token_ids(const std::vector<std::int64_t>& ids, std::uint32_t vocab_size,
                                const std::string& path) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < static_cast<std::int64_t>(vocab_size)) continue;
    const std::string param = path + "[" + std::to_string(i) + "]";
    return fail(ErrorCode::kInvalidValue,
                param + " must be a token id from 0 to " + std::to_string(vocab_size - 1) +
                    ", not " + shown_value(ids[i]),
                param);
  }
  return {};
}

}  // namespace kvasir::server
