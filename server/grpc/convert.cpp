#include "server/grpc/convert.h"

#include "core/seconds.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace kvasir::server {
namespace {

v1::FinishReason finish_reason_of(FinishReason reason) {
  return reason == FinishReason::kLength ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_STOP;
}

std::string_view readiness_name(Readiness readiness) {
  switch (readiness) {
    case Readiness::kLoading:
      return "loading";
    case Readiness::kReady:
      return "ready";
    case Readiness::kDraining:
      return "draining";
  }
  return "loading";
}

std::uint64_t cancelled(const engine::EngineStatus& status, CancelCause cause) {
  return status.cancelled_total[static_cast<std::size_t>(cause)];
}

void add_model(const ModelInfo& model, const std::string& name, v1::ListModelsResponse& response) {
  v1::Model* entry = response.add_models();
  entry->set_id(name);
  entry->set_created(model.created_unix);
  entry->set_owned_by("kvasir");
  entry->set_max_model_len(model.context_tokens);
  entry->set_root(model.root);
}

}  // namespace

void append_delta(ChoiceDelta delta, v1::Choice& choice) {
  choice.set_index(delta.choice_index);
  choice.mutable_text()->append(delta.text);
  for (const TokenId token : delta.token_ids) choice.add_token_ids(token);
  for (const LogprobEntry& entry : delta.logprobs) {
    v1::TokenLogprob* logprob = choice.add_logprobs();
    logprob->set_token_id(entry.chosen.token);
    if (entry.has_logprob) logprob->set_logprob(entry.chosen.logprob);
    logprob->set_token(std::string(entry.chosen.bytes));
    for (const TokenText& alternative : entry.top) {
      v1::TopLogprob* top = logprob->add_top();
      top->set_token_id(alternative.token);
      top->set_logprob(alternative.logprob);
      top->set_token(std::string(alternative.bytes));
    }
  }
  if (delta.finish) choice.set_finish_reason(finish_reason_of(*delta.finish));
  if (delta.stop_string) choice.set_stop_string(*delta.stop_string);
  if (delta.stop_token) choice.set_stop_token(*delta.stop_token);
}

void fill_prompt_logprobs(const std::vector<LogprobEntry>& entries, std::uint32_t num_top,
                          v1::PromptLogprobs& message) {
  for (const LogprobEntry& entry : entries) {
    v1::PromptTokenLogprob* token = message.add_tokens();
    token->set_token_id(entry.chosen.token);
    token->set_token(std::string(entry.chosen.spelling));
    if (!entry.has_logprob) continue;
    token->set_logprob(entry.chosen.logprob);
    token->set_rank(entry.rank);
    for (std::size_t i = 0; i < std::min<std::size_t>(num_top, entry.top.size()); ++i) {
      v1::TopLogprob* top = token->add_top();
      top->set_token_id(entry.top[i].token);
      top->set_logprob(entry.top[i].logprob);
      top->set_token(std::string(entry.top[i].spelling));
    }
  }
}

void fill_usage(const Usage& usage, v1::Usage& message) {
  message.set_prompt_tokens(usage.prompt_tokens);
  message.set_completion_tokens(usage.completion_tokens);
  message.set_total_tokens(usage.prompt_tokens + usage.completion_tokens);
  message.set_cached_tokens(usage.cached_tokens);
}

v1::ListModelsResponse models_message(const ModelInfo& model) {
  v1::ListModelsResponse response;
  add_model(model, model.served_name, response);
  for (const std::string& alias : model.aliases) add_model(model, alias, response);
  return response;
}

v1::GetStatusResponse status_message(const GenerateService& service) {
  const ModelInfo& model = service.model();
  const engine::EngineStatus status = service.status();
  v1::GetStatusResponse out;
  out.set_model(model.served_name);
  out.set_readiness(std::string(readiness_name(service.readiness())));
  out.set_running_sequences(status.running_sequences);
  out.set_waiting_sequences(status.waiting_sequences);
  out.set_total_blocks(status.total_blocks);
  out.set_free_blocks(status.free_blocks);
  out.set_live_blocks(status.live_blocks);
  out.set_cached_blocks(status.cached_blocks);
  out.set_bytes_per_block(status.bytes_per_block);
  out.set_bytes_per_token(model.geometry.bytes_per_token());
  out.set_block_tokens(model.geometry.block_tokens);
  out.set_kv_type(std::string(kvcache::kv_type_name(model.geometry.type)));
  out.set_kv_budget_bytes(model.kv_budget_bytes);
  out.set_live_bytes(status.live_blocks * status.bytes_per_block);
  out.set_context_tokens(model.context_tokens);
  out.set_kernels(model.kernels);
  out.set_num_threads(model.num_threads);
  out.set_steps_total(status.steps_total);
  out.set_prompt_tokens_total(status.prompt_tokens_total);
  out.set_generation_tokens_total(status.generation_tokens_total);
  out.set_computed_tokens_total(status.computed_tokens_total);
  out.set_recomputed_tokens_total(status.recomputed_tokens_total);
  out.set_wasted_tokens_total(status.wasted_tokens_total);
  out.set_prefix_query_tokens_total(status.prefix_query_tokens_total);
  out.set_prefix_hit_tokens_total(status.prefix_hit_tokens_total);
  out.set_preemptions_total(status.preemptions_total);
  out.set_rejected_total(status.rejected_total);
  out.set_finished_stop_total(status.finished_stop_total);
  out.set_finished_length_total(status.finished_length_total);
  out.set_finished_error_total(status.finished_error_total);
  v1::CancelledTotal* causes = out.mutable_cancelled_total();
  causes->set_stop_string(cancelled(status, CancelCause::kStopString));
  causes->set_client_gone(cancelled(status, CancelCause::kClientGone));
  causes->set_grpc_cancel(cancelled(status, CancelCause::kGrpcCancel));
  causes->set_deadline(cancelled(status, CancelCause::kDeadline));
  causes->set_slow_client(cancelled(status, CancelCause::kSlowClient));
  causes->set_drain(cancelled(status, CancelCause::kDrain));
  out.set_execute_seconds_total(to_seconds(status.execute_time_total));
  out.set_step_seconds_total(to_seconds(status.step_time_total));
  return out;
}

}  // namespace kvasir::server
