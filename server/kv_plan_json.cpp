#include "server/kv_plan_json.h"

#include "server/http/json_writer.h"

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvasir::server {
namespace {

void nullable(JsonWriter& json, std::string_view name, const std::optional<std::uint64_t>& number) {
  json.key(name);
  if (number) {
    json.unsigned_integer(*number);
  } else {
    json.null();
  }
}

void nullable(JsonWriter& json, std::string_view name, const std::string& text) {
  json.key(name);
  if (text.empty()) {
    json.null();
  } else {
    json.string(text);
  }
}

void write_asked(JsonWriter& json, const kvcache::KvPlan& plan) {
  const kvcache::PlanRequest& asked = plan.asked;
  json.member("object", "kv.plan");
  nullable(json, "model", asked.model.name);
  json.member("layers", plan.num_layers).member("kv_heads", plan.num_kv_heads);
  json.member("query_heads", asked.model.query_heads).member("head_dim", plan.head_dim);
  json.member("kv_type", kvcache::kv_type_name(asked.type));
  json.member("element_bytes", kvcache::element_bytes(asked.type));
  json.key("grouping").boolean(asked.grouping);
  json.member("grouping_ratio", plan.grouping_ratio);
  json.member("context_tokens", asked.context_tokens).member("batch", asked.batch);
  json.member("prompt_tokens", asked.prompt_tokens).member("new_tokens", asked.new_tokens);
  nullable(json, "budget_bytes", asked.budget_bytes);
}

void write_answer(JsonWriter& json, const kvcache::KvPlan& plan) {
  json.member("bytes_per_token", plan.bytes_per_token);
  json.member("bytes_per_sequence", plan.bytes_per_sequence);
  json.member("total_bytes", plan.total_bytes);
  nullable(json, "weights_bytes", plan.asked.model.weights_bytes);
  nullable(json, "weights_from", plan.asked.model.weights_from);
  json.key("ratio_to_weights");
  if (plan.ratio_to_weights) {
    json.number(*plan.ratio_to_weights);
  } else {
    json.null();
  }
  nullable(json, "sequences_in_budget", plan.sequences_in_budget);
  json.member("token_passes_with_cache", plan.token_passes_with_cache);
  json.member("token_passes_without_cache", plan.token_passes_without_cache);
  json.member("attention_scores_with_cache", plan.attention_scores_with_cache);
  json.member("attention_scores_without_cache", plan.attention_scores_without_cache);
  json.member("formula", plan.formula).member("formula_total", plan.formula_total);
}

void write_group(JsonWriter& json, const kvcache::PlanGroup& group) {
  json.begin_object().member("layers", group.shape.num_layers);
  json.member("kv_heads", group.shape.num_kv_heads).member("head_dim", group.shape.head_dim);
  json.member("window_tokens", group.shape.window_tokens);
  json.member("kept_tokens", group.kept_tokens).member("bytes_per_token", group.bytes_per_token);
  json.member("bytes_per_sequence", group.bytes_per_sequence);
  json.member("attention_scores_with_cache", group.attention_scores_with_cache);
  json.member("attention_scores_without_cache", group.attention_scores_without_cache).end_object();
}

void write_charge(JsonWriter& json, const kvcache::PlanCharge& charge) {
  json.begin_object().member("block_tokens", charge.block_tokens);
  json.member("largest_chunk", charge.largest_chunk);
  json.member("bytes_per_block", charge.bytes_per_block);
  json.member("blocks_per_sequence", charge.blocks_per_sequence);
  json.member("bytes_per_sequence", charge.bytes_per_sequence);
  json.member("total_bytes", charge.total_bytes);
  nullable(json, "sequences_in_budget", charge.sequences_in_budget);
  json.end_object();
}

}  // namespace

std::string kv_plan_json(const kvcache::KvPlan& plan) {
  JsonWriter json;
  json.begin_object();
  write_asked(json, plan);
  write_answer(json, plan);
  json.key("groups").begin_array();
  for (const kvcache::PlanGroup& group : plan.groups) write_group(json, group);
  json.end_array().key("charged");
  write_charge(json, plan.charge);
  json.end_object();
  return json.take();
}

}  // namespace kvasir::server
