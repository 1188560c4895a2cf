// What must hold for any verdict on a request, whichever door it came through: an error names the
// field and is fit to be shown, and what is accepted is in range by a second, independent look.
#pragma once

#include "core/result.h"
#include "server/field_table.h"
#include "server/http/request_json.h"
#include "server/request_fields.h"
#include "server/request_limits.h"
#include "server/validate.h"
#include "tests/fuzz/fuzz_input.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string>

namespace kvasir::fuzz {

inline constexpr std::uint32_t kVocabSize = 300;

inline const server::RequestLimits& request_limits() {
  static const server::RequestLimits limits = [] {
    server::RequestLimits made;
    made.json_values = 10'000;
    made.messages = 50;
    made.prompts = 20;
    made.choices = 16;
    made.chat_template_kwargs = {"think", "mode"};
    return made;
  }();
  return limits;
}

inline server::ValidationBounds bounds() {
  return {.vocab_size = kVocabSize, .limits = request_limits()};
}

inline void check_error(const Error& error) {
  require(error.code == ErrorCode::kInvalidType || error.code == ErrorCode::kInvalidValue ||
              error.code == ErrorCode::kMissingParameter ||
              error.code == ErrorCode::kUnsupportedParameter ||
              error.code == ErrorCode::kUnsupportedContent,
          "a bad field is the client's fault", error.message);
  require(!error.param.empty() && error.param.size() < 300, "an error names the field",
          error.message);
  require(!error.message.empty() && error.message.size() < 1000, "an error is a few words",
          error.message);
  for (const std::string& text : {error.message, error.param}) {
    require(std::none_of(text.begin(), text.end(),
                         [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }),
            "an error has no raw control characters", text);
    // Throws for what is not UTF-8, which no answer could hold.
    static_cast<void>(nlohmann::json(text).dump());
  }
}

inline bool is_in(float value, float low, float high) { return value >= low && value <= high; }

inline void check_params(const server::GenerateParams& params, std::size_t num_prompts) {
  const SamplingParams& s = params.sampling;
  require(is_in(s.temperature, 0, 2) && is_in(s.top_p, 0, 1) && is_in(s.min_p, 0, 1), "sampling");
  require(is_in(s.presence_penalty, -2, 2) && is_in(s.frequency_penalty, -2, 2), "penalties");
  require(
      s.repetition_penalty > 0 && s.repetition_penalty <= 10 && std::isnormal(s.repetition_penalty),
      "the repetition penalty");
  require(s.logit_bias.size() <= 1024, "biases are few");
  for (const auto& [token, bias] : s.logit_bias)
    require(token < kVocabSize && is_in(bias, -100, 100), "a bias");
  require(params.num_choices >= 1 && static_cast<std::int64_t>(params.num_choices * num_prompts) <=
                                         request_limits().choices,
          "choices");
  require(params.stop.size() <= request_limits().stop_strings, "stop strings are few");
  for (const std::string& stop : params.stop)
    require(!stop.empty() && stop.size() <= request_limits().stop_bytes, "a stop string");
  const auto& ids = params.stop_token_ids;
  require(std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end(),
          "stop ids ascend");
  require(ids.empty() || ids.back() < kVocabSize, "a stop id is a token");
  require(params.top_logprobs.value_or(0) <= 20 && params.prompt_logprobs.value_or(0) <= 20,
          "lists of logprobs");
  require(params.max_tokens.value_or(1) > 0 || params.echo, "max_tokens 0 only with echo");
  require(!params.max_tokens || params.min_tokens <= *params.max_tokens, "min_tokens");
  require(!params.timeout || params.timeout->count() > 0, "a timeout");
}

inline std::size_t num_prompts(const server::CompletionFields& fields) {
  return fields.prompts.size();
}
inline std::size_t num_prompts(const server::ChatFields&) { return 1; }

/// The verdict on fields: the parameters, or nothing for those that only have a verdict.
template <typename Fields>
auto judge(const Fields& fields) {
  auto verdict = server::validate(fields, bounds());
  if (!verdict) {
    check_error(verdict.error());
  } else if constexpr (requires { num_prompts(fields); }) {
    check_params(*verdict, num_prompts(fields));
    require(num_prompts(fields) >= 1 && num_prompts(fields) <= request_limits().prompts, "prompts");
  }
  return verdict;
}

template <typename Fields>
void judge_read(const Result<server::ReadFields<Fields>>& read) {
  if (read) {
    static_cast<void>(judge(read->fields));
  } else {
    check_error(read.error());
  }
}

/// A JSON object as a body of one of the four routes.
inline void judge_json(std::uint8_t route, const nlohmann::json& body) {
  switch (route % 4U) {
    case 0:
      return judge_read(server::read_detokenize(body, request_limits()));
    case 1:
      return judge_read(server::read_completion(body, request_limits()));
    case 2:
      return judge_read(server::read_chat(body, request_limits()));
    default:
      return judge_read(server::read_tokenize(body, request_limits()));
  }
}

}  // namespace kvasir::fuzz
