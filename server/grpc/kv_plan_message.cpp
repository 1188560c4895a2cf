#include "server/grpc/kv_plan_message.h"

#include <string>

namespace kvasir::server {
namespace {

void fill_asked(const kvcache::KvPlan& plan, v1::PlanResponse& message) {
  const kvcache::PlanRequest& asked = plan.asked;
  if (!asked.model.name.empty()) message.set_model(asked.model.name);
  message.set_layers(plan.num_layers);
  message.set_kv_heads(plan.num_kv_heads);
  message.set_query_heads(asked.model.query_heads);
  message.set_head_dim(plan.head_dim);
  message.set_kv_type(std::string(kvcache::kv_type_name(asked.type)));
  message.set_element_bytes(kvcache::element_bytes(asked.type));
  message.set_grouping(asked.grouping);
  message.set_grouping_ratio(plan.grouping_ratio);
  message.set_context_tokens(asked.context_tokens);
  message.set_batch(asked.batch);
  message.set_prompt_tokens(asked.prompt_tokens);
  message.set_new_tokens(asked.new_tokens);
  if (asked.budget_bytes) message.set_budget_bytes(*asked.budget_bytes);
  if (asked.model.weights_bytes) message.set_weights_bytes(*asked.model.weights_bytes);
  if (!asked.model.weights_from.empty()) message.set_weights_from(asked.model.weights_from);
}

void fill_answer(const kvcache::KvPlan& plan, v1::PlanResponse& message) {
  message.set_bytes_per_token(plan.bytes_per_token);
  message.set_bytes_per_sequence(plan.bytes_per_sequence);
  message.set_total_bytes(plan.total_bytes);
  if (plan.ratio_to_weights) message.set_ratio_to_weights(*plan.ratio_to_weights);
  if (plan.sequences_in_budget) message.set_sequences_in_budget(*plan.sequences_in_budget);
  message.set_token_passes_with_cache(plan.token_passes_with_cache);
  message.set_token_passes_without_cache(plan.token_passes_without_cache);
  message.set_attention_scores_with_cache(plan.attention_scores_with_cache);
  message.set_attention_scores_without_cache(plan.attention_scores_without_cache);
  message.set_formula(plan.formula);
  message.set_formula_total(plan.formula_total);
}

void fill_group(const kvcache::PlanGroup& group, v1::PlanGroup& message) {
  message.set_layers(group.shape.num_layers);
  message.set_kv_heads(group.shape.num_kv_heads);
  message.set_head_dim(group.shape.head_dim);
  message.set_window_tokens(group.shape.window_tokens);
  message.set_kept_tokens(group.kept_tokens);
  message.set_bytes_per_token(group.bytes_per_token);
  message.set_bytes_per_sequence(group.bytes_per_sequence);
  message.set_attention_scores_with_cache(group.attention_scores_with_cache);
  message.set_attention_scores_without_cache(group.attention_scores_without_cache);
}

void fill_charge(const kvcache::PlanCharge& charge, v1::PlanCharge& message) {
  message.set_block_tokens(charge.block_tokens);
  message.set_largest_chunk(charge.largest_chunk);
  message.set_bytes_per_block(charge.bytes_per_block);
  message.set_blocks_per_sequence(charge.blocks_per_sequence);
  message.set_bytes_per_sequence(charge.bytes_per_sequence);
  message.set_total_bytes(charge.total_bytes);
  if (charge.sequences_in_budget) message.set_sequences_in_budget(*charge.sequences_in_budget);
}

}  // namespace

v1::PlanResponse plan_message(const kvcache::KvPlan& plan) {
  v1::PlanResponse message;
  fill_asked(plan, message);
  fill_answer(plan, message);
  for (const kvcache::PlanGroup& group : plan.groups) fill_group(group, *message.add_groups());
  fill_charge(plan.charge, *message.mutable_charged());
  return message;
}

}  // namespace kvasir::server
