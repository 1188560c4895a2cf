#include "server/validate.h"

#include "server/row_checks.h"
#include "server/shown_value.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string_view>

namespace kvasir::server {
namespace {

/// The value, or the default of the member's row.
template <typename Value>
Value given_or_default(const GenerateFields& fields, std::optional<Value> GenerateFields::*member) {
  if (fields.*member) return *(fields.*member);
  return std::get<Value>(row_of(member).when_absent);
}

SamplingParams sampling_params(const GenerateFields& fields) {
  const auto number = [&](std::optional<double> GenerateFields::*member) {
    return static_cast<float>(given_or_default(fields, member));
  };
  SamplingParams sampling;
  sampling.temperature = number(&GenerateFields::temperature);
  sampling.top_p = number(&GenerateFields::top_p);
  sampling.min_p = number(&GenerateFields::min_p);
  sampling.presence_penalty = number(&GenerateFields::presence_penalty);
  sampling.frequency_penalty = number(&GenerateFields::frequency_penalty);
  sampling.repetition_penalty = number(&GenerateFields::repetition_penalty);
  const std::int64_t top_k = given_or_default(fields, &GenerateFields::top_k);
  sampling.top_k = static_cast<std::uint32_t>(std::max<std::int64_t>(top_k, 0));
  sampling.seed = static_cast<std::uint64_t>(fields.seed.value_or(0));
  for (const auto& [key, bias] : fields.logit_bias) {
    TokenId token = 0;
    std::from_chars(key.data(), key.data() + key.size(), token);
    sampling.logit_bias.emplace_back(token, static_cast<float>(bias));
  }
  // A JSON object and a protobuf map order their keys each in its own way.
  std::sort(sampling.logit_bias.begin(), sampling.logit_bias.end());
  return sampling;
}

std::vector<TokenId> sorted_ids(const std::vector<std::int64_t>& ids) {
  std::vector<TokenId> sorted;
  sorted.reserve(ids.size());
  for (const std::int64_t id : ids) sorted.push_back(static_cast<TokenId>(id));
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  return sorted;
}

std::optional<std::uint32_t> count_of(const std::optional<std::int64_t>& count) {
  if (!count) return std::nullopt;
  return static_cast<std::uint32_t>(*count);
}

/// What completions and chat share. Every field is in its own range already.
GenerateParams generate_params(const GenerateFields& fields) {
  GenerateParams params;
  params.sampling = sampling_params(fields);
  params.has_seed = fields.seed.has_value();
  if (fields.max_tokens) params.max_tokens = static_cast<std::uint64_t>(*fields.max_tokens);
  params.min_tokens =
      static_cast<std::uint64_t>(given_or_default(fields, &GenerateFields::min_tokens));
  params.num_choices = static_cast<std::uint32_t>(given_or_default(fields, &GenerateFields::n));
  params.stop = fields.stop;
  params.stop_token_ids = sorted_ids(fields.stop_token_ids);
  params.priority = static_cast<std::int32_t>(given_or_default(fields, &GenerateFields::priority));
  if (fields.timeout_ms) params.timeout = std::chrono::milliseconds(*fields.timeout_ms);
  params.cache_salt = fields.cache_salt;
  params.ignore_eos = fields.ignore_eos;
  params.skip_special_tokens = fields.skip_special_tokens;
  params.include_stop_str_in_output = fields.include_stop_str_in_output;
  params.return_token_ids = fields.return_token_ids;
  params.kv_receipt = fields.kv_receipt;
  params.prompt_logprobs = count_of(fields.prompt_logprobs);
  return params;
}

void check_choices(Verdict& verdict, std::uint64_t n, std::uint64_t num_prompts,
                   const RequestLimits& limits) {
  verdict.require(
      n * num_prompts <= static_cast<std::uint64_t>(limits.choices), "n",
      "such that n times the number of prompts is at most " + std::to_string(limits.choices),
      std::to_string(n) + " with " + std::to_string(num_prompts) + " prompts");
}

void check_min_tokens(Verdict& verdict, const GenerateParams& params) {
  verdict.require(!params.max_tokens || params.min_tokens <= *params.max_tokens, "min_tokens",
                  "at most max_tokens (" + std::to_string(params.max_tokens.value_or(0)) + ")",
                  std::to_string(params.min_tokens));
}

/// A whole answer keeps its logprobs until its end, so their number is bounded beforehand.
void check_logprob_entries(Verdict& verdict, const GenerateParams& params, std::size_t num_prompts,
                           const std::string& max_tokens_name) {
  if (!params.top_logprobs) return;
  const std::uint64_t most = max_tokens_with_logprobs(params, num_prompts);
  const std::uint64_t wanted = params.max_tokens.value_or(params.min_tokens);
  verdict.require(wanted <= most, params.max_tokens ? max_tokens_name : "min_tokens",
                  "at most " + std::to_string(most) + " with so many choices and logprobs",
                  std::to_string(wanted));
}

/// Fields that mean something only beside others.
void check_shared(Verdict& verdict, const GenerateFields& fields, const GenerateParams& params,
                  std::size_t num_prompts, const RequestLimits& limits,
                  const std::string& max_tokens_name) {
  check_choices(verdict, params.num_choices, num_prompts, limits);
  verdict.require(!fields.has_stream_options || fields.stream, "stream_options",
                  "absent unless stream is true", "given without it");
  check_min_tokens(verdict, params);
  check_logprob_entries(verdict, params, num_prompts, max_tokens_name);
}

/// JSON tells the kind of a list by its first element; gRPC could mix them.
void check_one_kind(Verdict& verdict, const std::vector<PromptInput>& prompts) {
  for (std::size_t i = 1; i < prompts.size(); ++i) {
    if (prompts[i].index() == prompts.front().index()) continue;
    const std::string param = "prompt[" + std::to_string(i) + "]";
    verdict.fail(ErrorCode::kInvalidType, param,
                 param + " must be of the kind of the first prompt: all texts, or all token ids");
    return;
  }
}

template <typename Value>
Result<Value> judged(Verdict& verdict, Value value) {
  if (auto result = verdict.take(); !result) return tl::unexpected<Error>(result.error());
  return value;
}

}  // namespace

Result<GenerateParams> validate(const CompletionFields& fields, const ValidationBounds& bounds) {
  Verdict verdict;
  check_rows(fields, bounds, verdict);
  if (verdict.failed()) return tl::unexpected<Error>(verdict.take().error());
  GenerateParams params = generate_params(fields);
  params.top_logprobs = count_of(fields.logprobs);
  params.echo = fields.echo;
  check_one_kind(verdict, fields.prompts);
  verdict.require(fields.echo || fields.max_tokens != 0, "max_tokens",
                  "an integer of at least 1, or 0 with echo", "0 without it");
  check_shared(verdict, fields, params, fields.prompts.size(), bounds.limits, "max_tokens");
  return judged(verdict, std::move(params));
}

Result<GenerateParams> validate(const ChatFields& fields, const ValidationBounds& bounds) {
  Verdict verdict;
  check_rows(fields, bounds, verdict);
  if (verdict.failed()) return tl::unexpected<Error>(verdict.take().error());
  GenerateParams params = generate_params(fields);
  if (fields.max_completion_tokens) {
    const std::int64_t value = *fields.max_completion_tokens;
    verdict.require(!fields.max_tokens || *fields.max_tokens == value, "max_completion_tokens",
                    "equal to max_tokens when both are given (" +
                        shown_value(fields.max_tokens.value_or(0)) + ")",
                    shown_value(value));
    params.max_tokens = static_cast<std::uint64_t>(value);
  }
  verdict.require(!fields.top_logprobs || fields.logprobs, "top_logprobs",
                  "absent unless logprobs is true",
                  shown_value(fields.top_logprobs.value_or(0)) + " without it");
  if (fields.logprobs) params.top_logprobs = count_of(fields.top_logprobs.value_or(0));
  check_shared(verdict, fields, params, 1, bounds.limits,
               fields.max_completion_tokens ? "max_completion_tokens" : "max_tokens");
  return judged(verdict, std::move(params));
}

Result<void> validate(const TokenizeFields& fields, const ValidationBounds& bounds) {
  Verdict verdict;
  check_rows(fields, bounds, verdict);
  if (fields.prompt.has_value() == fields.messages.has_value()) {
    verdict.fail(ErrorCode::kMissingParameter, "prompt",
                 "one of prompt and messages must be given, and not both");
  }
  return verdict.take();
}

Result<void> validate(const DetokenizeFields& fields, const ValidationBounds& bounds) {
  Verdict verdict;
  check_rows(fields, bounds, verdict);
  return verdict.take();
}

std::uint64_t max_tokens_with_logprobs(const GenerateParams& params, std::size_t num_prompts) {
  const std::uint64_t per_token = std::uint64_t{1} + params.top_logprobs.value_or(0);
  const std::uint64_t choices = std::max<std::uint64_t>(num_prompts, 1) * params.num_choices;
  return kMaxLogprobEntries / (choices * per_token);
}

}  // namespace kvasir::server
