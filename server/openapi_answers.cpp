#include "server/openapi_answers.h"

#include "server/kv_receipt.h"
#include "server/kv_status.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvasir::server {
namespace {

// Text rather than code: a schema is read as JSON.
constexpr std::string_view kErrors = R"json({
"Error": {"type": "object", "required": ["error"], "additionalProperties": false, "properties": {
  "error": {"type": "object", "required": ["message", "type", "param", "code"], "additionalProperties": false,
    "properties": {
      "message": {"type": "string"},
      "type": {"type": "string"},
      "param": {"type": ["string", "null"], "description": "Path of the field at fault."},
      "code": {"type": ["string", "null"]}}}}}
})json";

constexpr std::string_view kMessages = R"json({
"Message": {"type": "object", "required": ["role", "content"],
  "properties": {
    "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"],
      "description": "function is an older word for tool."},
    "content": {"anyOf": [
      {"type": "string"},
      {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/TextPart"}}]},
    "name": {"type": ["string", "null"]},
    "tool_call_id": {"type": ["string", "null"]},
    "tool_calls": {"enum": [[], null], "description": "Not supported."},
    "function_call": {"type": "null", "description": "Not supported."},
    "audio": {"type": "null", "description": "Not supported."}},
  "if": {"properties": {"role": {"const": "tool"}}},
  "then": {"required": ["tool_call_id"], "properties": {"tool_call_id": {"type": "string"}}}},
"TextPart": {"type": "object", "required": ["type", "text"],
  "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}
})json";

constexpr std::string_view kShared = R"json({
"Usage": {"type": "object",
  "required": ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"],
  "properties": {
    "prompt_tokens": {"type": "integer", "minimum": 1, "description": "Each prompt once, whatever n."},
    "completion_tokens": {"type": "integer", "minimum": 0},
    "total_tokens": {"type": "integer", "minimum": 1},
    "prompt_tokens_details": {"type": "object", "required": ["cached_tokens"],
      "properties": {"cached_tokens": {"type": "integer", "minimum": 0}}},
    "completion_tokens_details": {"type": "object", "required": ["reasoning_tokens"],
      "properties": {"reasoning_tokens": {"type": "integer", "minimum": 0}}},
    "kv_cache": {"$ref": "#/components/schemas/KvReceipt"}}},
"FinishReason": {"enum": ["stop", "length"]},
"StopReason": {"type": ["string", "integer", "null"],
  "description": "The request's own stop string or token that ended the choice."},
"TokenIds": {"type": "array", "items": {"type": "integer", "minimum": 0}},
"Logprob": {"type": "number", "maximum": 0, "description": "Natural, of the raw logits; -9999 where the probability is 0."},
"PromptLogprobs": {"type": "array", "description": "One entry for each prompt token, null for the first; by token id.",
  "items": {"anyOf": [{"type": "null"}, {"type": "object", "propertyNames": {"pattern": "^[0-9]+$"},
    "additionalProperties": {"type": "object", "required": ["logprob", "rank", "decoded_token"],
      "properties": {
        "logprob": {"$ref": "#/components/schemas/Logprob"},
        "rank": {"type": "integer", "minimum": 1},
        "decoded_token": {"type": "string"}}}}]}}
})json";

// Of whole answers and chunks, the members that not all of them have: see Head.
constexpr std::string_view kCompletions = R"json({
"Completion": {
    "choices": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/CompletionChoice"}},
    "usage": {"$ref": "#/components/schemas/Usage"}},
"CompletionChoice": {"type": "object", "required": ["index", "text", "logprobs", "finish_reason"],
  "properties": {
    "index": {"type": "integer", "minimum": 0, "description": "Prompt index times n plus k."},
    "text": {"type": "string"},
    "logprobs": {"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/CompletionLogprobs"}]},
    "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
    "stop_reason": {"$ref": "#/components/schemas/StopReason"},
    "token_ids": {"$ref": "#/components/schemas/TokenIds"},
    "prompt_token_ids": {"$ref": "#/components/schemas/TokenIds"},
    "prompt_logprobs": {"$ref": "#/components/schemas/PromptLogprobs"}}},
"CompletionLogprobs": {"type": "object", "required": ["tokens", "token_logprobs", "top_logprobs", "text_offset"],
  "properties": {
    "tokens": {"type": "array", "items": {"type": "string"}},
    "token_logprobs": {"type": "array",
      "items": {"anyOf": [{"$ref": "#/components/schemas/Logprob"}, {"type": "null"}]}},
    "top_logprobs": {"type": "array", "items": {"anyOf": [{"type": "null"},
      {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Logprob"}}]}},
    "text_offset": {"type": "array", "items": {"type": "integer", "minimum": 0}}}},
"CompletionChunk": {
    "choices": {"type": "array", "items": {"type": "object", "required": ["index", "text", "logprobs", "finish_reason"],
      "properties": {
        "index": {"type": "integer", "minimum": 0},
        "text": {"type": "string"},
        "logprobs": {"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/CompletionLogprobs"}]},
        "finish_reason": {"enum": ["stop", "length", null], "description": "null until a choice's last chunk."},
        "stop_reason": {"$ref": "#/components/schemas/StopReason"},
        "token_ids": {"$ref": "#/components/schemas/TokenIds"},
        "prompt_token_ids": {"$ref": "#/components/schemas/TokenIds"},
        "prompt_logprobs": {"$ref": "#/components/schemas/PromptLogprobs"}}}},
    "usage": {"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/Usage"}]}}
})json";

constexpr std::string_view kChat = R"json({
"ChatCompletion": {
    "choices": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/ChatChoice"}},
    "prompt_token_ids": {"$ref": "#/components/schemas/TokenIds"},
    "prompt_logprobs": {"$ref": "#/components/schemas/PromptLogprobs"},
    "usage": {"$ref": "#/components/schemas/Usage"}},
"ChatChoice": {"type": "object", "required": ["index", "message", "logprobs", "finish_reason"],
  "properties": {
    "index": {"type": "integer", "minimum": 0},
    "message": {"type": "object", "required": ["role", "content", "refusal"],
      "properties": {
        "role": {"const": "assistant"},
        "content": {"type": ["string", "null"]},
        "refusal": {"type": "null"}}},
    "logprobs": {"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/ChatLogprobs"}]},
    "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
    "stop_reason": {"$ref": "#/components/schemas/StopReason"},
    "token_ids": {"$ref": "#/components/schemas/TokenIds"}}},
"ChatLogprobs": {"type": "object", "required": ["content", "refusal"],
  "properties": {
    "content": {"type": "array", "items": {"allOf": [{"$ref": "#/components/schemas/ChatToken"},
      {"type": "object", "required": ["top_logprobs"],
        "properties": {"top_logprobs": {"type": "array", "items": {"$ref": "#/components/schemas/ChatToken"}}}}]}},
    "refusal": {"type": "null"}}},
"ChatToken": {"type": "object", "required": ["token", "logprob", "bytes"],
  "properties": {
    "token": {"type": "string"},
    "logprob": {"$ref": "#/components/schemas/Logprob"},
    "bytes": {"type": ["array", "null"], "items": {"type": "integer", "minimum": 0, "maximum": 255}}}},
"ChatCompletionChunk": {
    "choices": {"type": "array", "items": {"type": "object", "required": ["index", "delta", "logprobs", "finish_reason"],
      "properties": {
        "index": {"type": "integer", "minimum": 0},
        "delta": {"type": "object",
          "properties": {"role": {"const": "assistant"}, "content": {"type": "string"}}},
        "logprobs": {"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/ChatLogprobs"}]},
        "finish_reason": {"enum": ["stop", "length", null], "description": "null until a choice's last chunk."},
        "stop_reason": {"$ref": "#/components/schemas/StopReason"},
        "token_ids": {"$ref": "#/components/schemas/TokenIds"}}}},
    "prompt_token_ids": {"$ref": "#/components/schemas/TokenIds"},
    "prompt_logprobs": {"$ref": "#/components/schemas/PromptLogprobs"},
    "usage": {"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/Usage"}]}}
})json";

constexpr std::string_view kOthers = R"json({
"Tokens": {"type": "object", "required": ["tokens", "count", "max_model_len"],
  "properties": {
    "tokens": {"$ref": "#/components/schemas/TokenIds"},
    "count": {"type": "integer", "minimum": 0},
    "max_model_len": {"type": "integer", "minimum": 1}}},
"Text": {"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
"TokenizerInfo": {"type": "object",
  "properties": {
    "bos_token": {"type": ["string", "null"]},
    "eos_token": {"type": ["string", "null"]},
    "pad_token": {"type": ["string", "null"]},
    "chat_template": {"type": ["string", "null"]}}},
"Models": {"type": "object", "required": ["object", "data"],
  "properties": {
    "object": {"const": "list"},
    "data": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Model"}}}},
"Model": {"type": "object", "required": ["id", "object", "created", "owned_by", "max_model_len", "root", "parent"],
  "properties": {
    "id": {"type": "string"},
    "object": {"const": "model"},
    "created": {"type": "integer"},
    "owned_by": {"const": "kvasir"},
    "max_model_len": {"type": "integer", "minimum": 1},
    "root": {"type": "string"},
    "parent": {"type": "null"}}},
"KvPlan": {"type": "object", "required": ["object", "model", "layers", "kv_heads", "query_heads", "head_dim", "kv_type",
    "element_bytes", "grouping", "grouping_ratio", "context_tokens", "batch", "prompt_tokens", "new_tokens", "budget_bytes",
    "bytes_per_token", "bytes_per_sequence", "total_bytes", "weights_bytes", "weights_from", "ratio_to_weights",
    "sequences_in_budget", "token_passes_with_cache", "token_passes_without_cache", "attention_scores_with_cache",
    "attention_scores_without_cache", "formula", "formula_total", "groups", "charged"],
  "additionalProperties": false,
  "properties": {
    "object": {"const": "kv.plan"},
    "model": {"type": ["string", "null"], "description": "Preset or served name; null for numbers."},
    "layers": {"type": "integer", "minimum": 1},
    "kv_heads": {"type": "integer", "minimum": 1, "description": "That are counted: all query heads without grouping."},
    "query_heads": {"type": "integer", "minimum": 1},
    "head_dim": {"type": "integer", "minimum": 1},
    "kv_type": {"enum": ["f32", "f16", "bf16"]},
    "element_bytes": {"enum": [2, 4]},
    "grouping": {"type": "boolean"},
    "grouping_ratio": {"type": "integer", "minimum": 1,
      "description": "Query heads to the model's KV heads: so many times the bytes without grouping."},
    "context_tokens": {"type": "integer", "minimum": 1},
    "batch": {"type": "integer", "minimum": 1},
    "prompt_tokens": {"type": "integer", "minimum": 1},
    "new_tokens": {"type": "integer", "minimum": 0},
    "budget_bytes": {"type": ["integer", "null"], "minimum": 0},
    "bytes_per_token": {"type": "integer", "minimum": 1,
      "description": "Of the next token, while no window is full: as the formula says."},
    "bytes_per_sequence": {"type": "integer", "minimum": 1,
      "description": "Of context_tokens tokens; a windowed layer keeps no more than its window."},
    "total_bytes": {"type": "integer", "minimum": 1, "description": "Of the batch."},
    "weights_bytes": {"type": ["integer", "null"], "minimum": 1},
    "weights_from": {"type": ["string", "null"]},
    "ratio_to_weights": {"type": ["number", "null"], "description": "total_bytes to weights_bytes."},
    "sequences_in_budget": {"type": ["integer", "null"], "minimum": 0, "description": "Whole ones, of context_tokens tokens, by the formula. What a pool really holds is in charged: blocks are whole, and a window keeps room for a chunk."},
    "token_passes_with_cache": {"type": "integer", "minimum": 1},
    "token_passes_without_cache": {"type": "integer", "minimum": 1},
    "attention_scores_with_cache": {"type": "integer", "minimum": 1,
      "description": "Of one layer and head; where windows differ the mean over all layers, rounded down."},
    "attention_scores_without_cache": {"type": "integer", "minimum": 1, "description": "Likewise."},
    "formula": {"type": "string", "description": "Of bytes_per_token, with the numbers."},
    "formula_total": {"type": "string", "description": "Of total_bytes, with the numbers."},
    "groups": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/KvPlanGroup"}},
    "charged": {"type": "object", "description": "What this server would take out of its pool for the same, in whole blocks.",
      "required": ["block_tokens", "largest_chunk", "bytes_per_block", "blocks_per_sequence", "bytes_per_sequence",
        "total_bytes", "sequences_in_budget"],
      "additionalProperties": false,
      "properties": {
        "block_tokens": {"type": "integer", "minimum": 1},
        "largest_chunk": {"type": "integer", "minimum": 1,
          "description": "Tokens that a windowed layer holds beside its window while they are computed."},
        "bytes_per_block": {"type": "integer", "minimum": 1},
        "blocks_per_sequence": {"type": "integer", "minimum": 1},
        "bytes_per_sequence": {"type": "integer", "minimum": 1},
        "total_bytes": {"type": "integer", "minimum": 1},
        "sequences_in_budget": {"type": ["integer", "null"], "minimum": 0}}}}},
"KvPlanGroup": {"type": "object", "required": ["layers", "kv_heads", "head_dim", "window_tokens", "kept_tokens",
    "bytes_per_token", "bytes_per_sequence", "attention_scores_with_cache", "attention_scores_without_cache"],
  "additionalProperties": false,
  "description": "Layers that attend alike; scores are of one layer and head.",
  "properties": {
    "layers": {"type": "integer", "minimum": 1},
    "kv_heads": {"type": "integer", "minimum": 1},
    "head_dim": {"type": "integer", "minimum": 1},
    "window_tokens": {"type": "integer", "minimum": 0, "description": "0: none."},
    "kept_tokens": {"type": "integer", "minimum": 1, "description": "Of a sequence."},
    "bytes_per_token": {"type": "integer", "minimum": 1},
    "bytes_per_sequence": {"type": "integer", "minimum": 1},
    "attention_scores_with_cache": {"type": "integer", "minimum": 1},
    "attention_scores_without_cache": {"type": "integer", "minimum": 1}}},
"Status": {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}},
"V2Ready": {"type": "object", "required": ["ready"], "properties": {"ready": {"const": true}}},
"V2Live": {"type": "object", "required": ["live"], "properties": {"live": {"const": true}}},
"Version": {"type": "object", "required": ["version", "commit", "build"],
  "properties": {
    "version": {"type": "string"},
    "commit": {"type": "string"},
    "build": {"type": "string"}}},
"OpenApi": {"type": "object", "required": ["openapi", "info", "paths", "components"]}
})json";

/// What stands in front of an answer's choices.
struct Head {
  const char* schema;
  const char* id_pattern;
  const char* object;
  bool is_chunk;
};
constexpr std::array kHeads = {
    Head{"Completion", "^cmpl-", "text_completion", false},
    Head{"CompletionChunk", "^cmpl-", "text_completion", true},
    Head{"ChatCompletion", "^chatcmpl-", "chat.completion", false},
    Head{"ChatCompletionChunk", "^chatcmpl-", "chat.completion.chunk", true},
};

OrderedJson with_head(const Head& head, const OrderedJson& members) {
  OrderedJson properties{{"id", {{"type", "string"}, {"pattern", head.id_pattern}}},
                         {"object", {{"const", head.object}}},
                         {"created", {{"type", "integer"}}},
                         {"model", {{"type", "string"}}},
                         {"system_fingerprint", {{"type", "string"}}}};
  OrderedJson required = OrderedJson::array();
  for (const auto& property : properties.items()) required.push_back(property.key());
  required.push_back("choices");
  if (!head.is_chunk) required.push_back("usage");
  properties.update(members);
  OrderedJson schema{{"type", "object"}, {"required", std::move(required)}};
  if (head.is_chunk) {
    schema["description"] =
        "What came since the last chunk; of no choice where it brings the usage.";
  }
  schema["properties"] = std::move(properties);
  return schema;
}

OrderedJson type_of(std::uint64_t /*count*/) { return {{"type", "integer"}, {"minimum", 0}}; }
OrderedJson type_of(double /*number*/) { return {{"type", "number"}, {"minimum", 0}}; }
OrderedJson type_of(bool /*value*/) { return {{"type", "boolean"}}; }
OrderedJson type_of(const std::string& /*text*/) { return {{"type", "string"}}; }
OrderedJson type_of(const CauseCounts& /*counts*/) {
  OrderedJson properties = OrderedJson::object();
  OrderedJson required = OrderedJson::array();
  for (const std::string_view cause : kCancelCauses) {
    properties[std::string(cause)] = type_of(std::uint64_t{0});
    required.push_back(cause);
  }
  return {
      {"type", "object"}, {"required", std::move(required)}, {"properties", std::move(properties)}};
}
OrderedJson type_of(const std::vector<LayerGroupFacts>& groups);

/// All facts are always there.
template <typename Record>
OrderedJson facts_schema(std::span<const FactRow<Record>> rows) {
  OrderedJson properties = OrderedJson::object();
  OrderedJson required = OrderedJson::array();
  const Record example;
  for_each_fact(example, rows, [&](std::string_view name, const auto& value) {
    properties[std::string(name)] = type_of(value);
    required.push_back(name);
  });
  for (const FactRow<Record>& row : rows)
    properties[std::string(row.name)]["description"] = row.meaning;
  return {
      {"type", "object"}, {"required", std::move(required)}, {"properties", std::move(properties)}};
}

OrderedJson type_of(const std::vector<LayerGroupFacts>& /*groups*/) {
  return {{"type", "array"}, {"minItems", 1}, {"items", facts_schema(layer_group_rows())}};
}

OrderedJson kv_status_schema() {
  OrderedJson schema = facts_schema(kv_status_rows());
  schema["required"].push_back("object");
  schema["properties"]["object"] = {{"const", "kv.status"}};
  schema["properties"]["readiness"]["enum"] = {"loading", "ready", "draining", "not_serving"};
  return schema;
}

}  // namespace

OrderedJson answer_schemas() {
  OrderedJson schemas = OrderedJson::object();
  for (const std::string_view text : {kErrors, kMessages, kShared, kCompletions, kChat, kOthers})
    schemas.update(OrderedJson::parse(text));
  for (const Head& head : kHeads) schemas[head.schema] = with_head(head, schemas[head.schema]);
  schemas["KvReceipt"] = facts_schema(kv_receipt_rows());
  schemas["KvStatus"] = kv_status_schema();
  return schemas;
}

}  // namespace kvasir::server
