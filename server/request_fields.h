// What a door parsed out of a request: types are right, ranges are not checked yet. REST and gRPC
// both fill these structs, and one validator (validate.h) judges them, so that the same request
// gets the same verdict at both doors. What each member is called and what it may be is a row of
// field_table.
#pragma once

#include "text/chat_template.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace kvasir::server {

/// What every request may name. Absent means unset here and below; defaults are the table's.
struct RequestFields {
  std::optional<std::string> model;
};

/// Fields that completions and chat share.
struct GenerateFields : RequestFields {
  std::optional<double> temperature, top_p, min_p;
  std::optional<double> presence_penalty, frequency_penalty, repetition_penalty;
  std::optional<std::int64_t> top_k, max_tokens, min_tokens, n, seed, priority, timeout_ms;
  std::vector<std::string> stop;
  std::vector<std::int64_t> stop_token_ids;
  std::vector<std::pair<std::string, double>> logit_bias;  // decimal token id, bias
  std::optional<std::int64_t> prompt_logprobs;  // 0..20: top entries beside each prompt token
  std::optional<std::string> cache_salt;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool include_stop_str_in_output = false;
  bool return_token_ids = false;
  std::optional<bool> kv_receipt;  // absent: as the server is set
  bool stream = false;
  bool include_usage = false;           // stream_options
  bool continuous_usage_stats = false;  // stream_options
  bool has_stream_options = false;
};

/// A prompt as text, or as ids that get no BOS.
using PromptInput = std::variant<std::string, std::vector<std::int64_t>>;

struct CompletionFields : GenerateFields {
  std::vector<PromptInput> prompts;
  std::optional<std::int64_t> logprobs;  // 0..20: top entries beside the sampled token
  bool echo = false;                     // the prompt comes first in the text
};

struct ChatFields : GenerateFields {
  std::vector<text::ChatMessage> messages;
  std::optional<std::int64_t> max_completion_tokens;
  bool logprobs = false;
  std::optional<std::int64_t> top_logprobs;  // 0..20, needs logprobs
  std::string template_kwargs;               // JSON object of chat_template_kwargs; empty: none
};

struct TokenizeFields : RequestFields {
  std::optional<std::string> prompt;  // one of the two
  std::optional<std::vector<text::ChatMessage>> messages;
  std::optional<bool> add_special_tokens;  // default true for a prompt
};

struct DetokenizeFields : RequestFields {
  std::vector<std::int64_t> tokens;
};

/// What the calculator is asked: a preset, the model's own numbers, or the served model.
struct PlanFields : RequestFields {
  std::optional<std::string> preset, kv_type, window_pattern;
  std::optional<std::int64_t> layers, kv_heads, query_heads, head_dim;
  std::optional<std::int64_t> context_tokens, batch, window_tokens, prompt_tokens, new_tokens;
  std::optional<std::int64_t> budget_bytes;
  std::optional<bool> grouping;
};

}  // namespace kvasir::server
