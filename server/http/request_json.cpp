#include "server/http/request_json.h"

#include "server/http/field_reader.h"

#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace kvasir::server {
namespace {

using nlohmann::json;

/// Accepted and without a say in what is generated.
constexpr std::array<std::string_view, 10> kBookkeeping = {"user",
                                                           "metadata",
                                                           "store",
                                                           "service_tier",
                                                           "safety_identifier",
                                                           "prompt_cache_key",
                                                           "prompt_cache_retention",
                                                           "prediction",
                                                           "parallel_tool_calls",
                                                           "request_id"};

/// Fields that clients know from other servers and that would change the answer.
constexpr std::array<std::string_view, 27> kNotBuilt = {"prompt_logprobs",
                                                        "prompt_embeds",
                                                        "audio",
                                                        "web_search_options",
                                                        "chat_template",
                                                        "reasoning_effort",
                                                        "verbosity",
                                                        "guided_json",
                                                        "guided_regex",
                                                        "guided_choice",
                                                        "guided_grammar",
                                                        "structured_outputs",
                                                        "grammar",
                                                        "json_schema",
                                                        "truncate_prompt_tokens",
                                                        "allowed_token_ids",
                                                        "logits_processors",
                                                        "documents",
                                                        "mm_processor_kwargs",
                                                        "mirostat",
                                                        "typical_p",
                                                        "n_probs",
                                                        "lora",
                                                        "samplers",
                                                        "dry_multiplier",
                                                        "xtc_probability",
                                                        "thinking_token_budget"};

void read_stop(FieldReader& reader, std::vector<std::string>& stop) {
  const json* value = reader.find("stop");
  if (value == nullptr) return;
  if (value->is_string()) {
    stop.push_back(value->get<std::string>());
    return;
  }
  if (!value->is_array()) return reader.fail_type("stop", "a string or a list of strings", *value);
  for (const json& item : *value) {
    if (!item.is_string()) return reader.fail_type("stop", "a string or a list of strings", item);
    stop.push_back(item.get<std::string>());
  }
}

void read_logit_bias(FieldReader& reader, std::vector<std::pair<std::string, double>>& bias) {
  const json* value = reader.find("logit_bias");
  if (value == nullptr) return;
  if (!value->is_object())
    return reader.fail_type("logit_bias", "a map of token ids to numbers", *value);
  for (const auto& member : value->items()) {
    if (!member.value().is_number()) {
      return reader.fail_type("logit_bias", "a map of token ids to numbers", member.value());
    }
    bias.emplace_back(member.key(), member.value().get<double>());
  }
}

void read_stream_options(FieldReader& reader, GenerateFields& fields) {
  const json* value = reader.find("stream_options");
  if (value == nullptr) return;
  fields.has_stream_options = true;
  if (!value->is_object()) return reader.fail_type("stream_options", "an object", *value);
  FieldReader options(*value, "stream_options.");
  fields.include_usage = options.boolean("include_usage", false);
  fields.continuous_usage_stats = options.boolean("continuous_usage_stats", false);
  if (const auto& error = options.error()) reader.fail(error->code, error->message, error->param);
}

void refuse_not_built(FieldReader& reader) {
  for (const std::string_view name : kNotBuilt) reader.refuse(name);
  reader.refuse("chat_template_kwargs", json::object());
  reader.refuse("echo", false);
  reader.refuse("suffix", "");
  reader.refuse("best_of", 1);
  reader.refuse("functions");
  reader.refuse("function_call", "none");
  reader.refuse("tool_choice", "none");
  reader.refuse("response_format", json{{"type", "text"}});
  reader.refuse("modalities", json::array({"text"}));
  reader.refuse("use_beam_search", false);
  reader.refuse("add_generation_prompt", true);
  reader.refuse("continue_final_message", false);
  reader.refuse("return_tokens_as_token_ids", false);
  reader.refuse("kv_receipt", false);
  reader.refuse("length_penalty", 1.0);
  reader.refuse("bad_words", json::array());
  const json* tools = reader.find("tools");
  if (tools == nullptr) return;
  if (tools->is_array() && tools->empty()) {
    return reader.fail(ErrorCode::kInvalidValue, "tools must not be an empty list", "tools");
  }
  reader.refuse("tools");
}

void read_generate(FieldReader& reader, GenerateFields& fields) {
  fields.model = reader.string("model");
  fields.temperature = reader.number("temperature");
  fields.top_p = reader.number("top_p");
  fields.min_p = reader.number("min_p");
  fields.presence_penalty = reader.number("presence_penalty");
  fields.frequency_penalty = reader.number("frequency_penalty");
  fields.repetition_penalty = reader.number("repetition_penalty");
  fields.top_k = reader.integer("top_k");
  fields.max_tokens = reader.integer("max_tokens");
  fields.min_tokens = reader.integer("min_tokens");
  fields.n = reader.integer("n");
  fields.seed = reader.integer("seed");
  fields.priority = reader.integer("priority");
  fields.timeout_ms = reader.integer("timeout_ms");
  read_stop(reader, fields.stop);
  fields.stop_token_ids = reader.integers("stop_token_ids");
  read_logit_bias(reader, fields.logit_bias);
  fields.cache_salt = reader.string("cache_salt");
  fields.ignore_eos = reader.boolean("ignore_eos", false);
  fields.skip_special_tokens = reader.boolean("skip_special_tokens", true);
  fields.include_stop_str_in_output = reader.boolean("include_stop_str_in_output", false);
  fields.return_token_ids = reader.boolean("return_token_ids", false);
  fields.stream = reader.boolean("stream", false);
  read_stream_options(reader, fields);
  for (const std::string_view name : kBookkeeping) reader.accept(name);
  refuse_not_built(reader);
}

/// A list of token ids at `path`, or nothing with the error set.
std::optional<std::vector<std::int64_t>> read_ids(FieldReader& reader, const json& list,
                                                  const std::string& path) {
  std::vector<std::int64_t> ids;
  ids.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::optional<std::int64_t> id = exact_integer(list[i]);
    if (!id) {
      reader.fail_type(path + "[" + std::to_string(i) + "]",
                       "a token id like the first of its list", list[i]);
      return std::nullopt;
    }
    ids.push_back(*id);
  }
  return ids;
}

void read_prompt(FieldReader& reader, std::vector<PromptInput>& prompts) {
  constexpr std::string_view kExpected =
      "a string, a list of strings, of token ids, or of lists of token ids";
  const json* value = reader.find("prompt");
  if (value == nullptr) return;  // the validator knows that one is needed
  if (value->is_string()) {
    prompts.emplace_back(value->get<std::string>());
    return;
  }
  if (!value->is_array()) return reader.fail_type("prompt", kExpected, *value);
  if (value->empty()) return;
  if (value->front().is_number()) {
    if (auto ids = read_ids(reader, *value, "prompt")) prompts.emplace_back(std::move(*ids));
    return;
  }
  const bool texts = value->front().is_string();
  for (std::size_t i = 0; i < value->size(); ++i) {
    const json& item = (*value)[i];
    const std::string path = "prompt[" + std::to_string(i) + "]";
    if (texts && item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else if (!texts && item.is_array()) {
      auto ids = read_ids(reader, item, path);
      if (!ids) return;
      prompts.emplace_back(std::move(*ids));
    } else {
      return reader.fail_type(path, kExpected, item);
    }
  }
}

/// The parts joined in order.
std::optional<std::string> read_parts(FieldReader& reader, const json& parts,
                                      const std::string& path) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string part_path = path + "[" + std::to_string(i) + "]";
    if (!parts[i].is_object()) {
      reader.fail_type(part_path, "an object", parts[i]);
      return std::nullopt;
    }
    FieldReader part(parts[i], part_path + ".");
    const std::string type = part.string("type").value_or("");
    std::string piece;
    if (!part.error()) {
      if (type.empty()) {
        part.fail(ErrorCode::kMissingParameter, part_path + ".type must be given",
                  part_path + ".type");
      } else if (type != "text") {
        part.fail(ErrorCode::kUnsupportedContent,
                  part_path + ".type must be \"text\", not " + shown_json(parts[i]["type"]),
                  part_path + ".type");
      } else if (auto given = part.string("text")) {
        piece = std::move(*given);
      } else {
        part.fail(ErrorCode::kMissingParameter, part_path + ".text must be given",
                  part_path + ".text");
      }
    }
    if (const auto& error = part.error()) {
      reader.fail(error->code, error->message, error->param);
      return std::nullopt;
    }
    text += piece;
  }
  return text;
}

void read_content(FieldReader& reader, const std::string& path, text::ChatMessage& message) {
  const json* content = reader.find("content");
  const std::string param = path + ".content";
  if (content == nullptr) {
    return reader.fail(ErrorCode::kInvalidType,
                       param + " must be a string or a list of parts, not null", param);
  }
  if (content->is_string()) {
    message.content = content->get<std::string>();
  } else if (content->is_array()) {
    if (content->empty()) {
      return reader.fail(ErrorCode::kInvalidValue, param + " must not be an empty list", param);
    }
    if (auto text = read_parts(reader, *content, param)) message.content = std::move(*text);
  } else {
    reader.fail_type(param, "a string or a list of parts", *content);
  }
}

Result<text::ChatMessage> read_message(const json& value, const std::string& path) {
  text::ChatMessage message;
  FieldReader reader(value, path + ".");
  if (auto role = reader.string("role")) {
    message.role = std::move(*role);
  } else {
    reader.fail(ErrorCode::kMissingParameter, path + ".role must be given", path + ".role");
  }
  message.name = reader.string("name");
  message.tool_call_id = reader.string("tool_call_id");
  if (message.role ==
      "function") {  // the older word for a tool's answer, which names the function only
    message.role = "tool";
    if (!message.tool_call_id) message.tool_call_id = message.name.value_or("");
  }
  reader.refuse("tool_calls", json::array());
  reader.refuse("function_call");
  reader.refuse("audio");
  read_content(reader, path, message);
  if (const auto& error = reader.error()) return tl::unexpected<Error>(*error);
  return message;
}

std::optional<std::vector<text::ChatMessage>> read_messages(FieldReader& reader) {
  const json* value = reader.find("messages");
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) {
    reader.fail_type("messages", "a list of messages", *value);
    return std::nullopt;
  }
  std::vector<text::ChatMessage> messages;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const std::string path = "messages[" + std::to_string(i) + "]";
    if (!(*value)[i].is_object()) {
      reader.fail_type(path, "an object", (*value)[i]);
      return std::nullopt;
    }
    Result<text::ChatMessage> message = read_message((*value)[i], path);
    if (!message) {
      reader.fail(message.error().code, message.error().message, message.error().param);
      return std::nullopt;
    }
    messages.push_back(std::move(*message));
  }
  return messages;
}

template <typename Fields>
Result<ReadFields<Fields>> finish(const FieldReader& reader, Fields fields) {
  if (const auto& error = reader.error()) return tl::unexpected<Error>(*error);
  return ReadFields<Fields>{std::move(fields), reader.num_ignored()};
}

}  // namespace

Result<ReadFields<CompletionFields>> read_completion(const json& body) {
  FieldReader reader(body);
  CompletionFields fields;
  read_generate(reader, fields);
  read_prompt(reader, fields.prompts);
  fields.logprobs = reader.integer("logprobs");
  reader.refuse("max_completion_tokens");
  reader.refuse("top_logprobs");
  return finish(reader, std::move(fields));
}

Result<ReadFields<ChatFields>> read_chat(const json& body) {
  FieldReader reader(body);
  ChatFields fields;
  read_generate(reader, fields);
  if (auto messages = read_messages(reader)) fields.messages = std::move(*messages);
  fields.max_completion_tokens = reader.integer("max_completion_tokens");
  fields.logprobs = reader.boolean("logprobs", false);
  fields.top_logprobs = reader.integer("top_logprobs");
  return finish(reader, std::move(fields));
}

Result<ReadFields<TokenizeFields>> read_tokenize(const json& body) {
  FieldReader reader(body);
  TokenizeFields fields;
  fields.model = reader.string("model");
  fields.prompt = reader.string("prompt");
  fields.messages = read_messages(reader);
  if (reader.find("add_special_tokens") != nullptr)
    fields.add_special_tokens = reader.boolean("add_special_tokens", true);
  reader.refuse("add_generation_prompt", true);
  reader.refuse("return_token_strs", false);
  reader.refuse("tools");
  reader.refuse("chat_template");
  reader.refuse("chat_template_kwargs", json::object());
  return finish(reader, std::move(fields));
}

Result<ReadFields<DetokenizeFields>> read_detokenize(const json& body) {
  FieldReader reader(body);
  DetokenizeFields fields;
  fields.model = reader.string("model");
  if (reader.find("tokens") == nullptr)
    reader.fail(ErrorCode::kMissingParameter, "tokens must be given", "tokens");
  fields.tokens = reader.integers("tokens");
  return finish(reader, std::move(fields));
}

}  // namespace kvasir::server
