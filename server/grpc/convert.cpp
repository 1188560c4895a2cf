#include "server/grpc/convert.h"

#include "server/grpc/facts_message.h"

#include <algorithm>
#include <utility>

namespace kvasir::server {
namespace {

v1::FinishReason finish_reason_of(FinishReason reason) {
  return reason == FinishReason::kLength ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_STOP;
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
  if (usage.kv_cache) fill_kv_receipt(*usage.kv_cache, *message.mutable_kv_cache());
}

v1::ListModelsResponse models_message(const ModelInfo& model) {
  v1::ListModelsResponse response;
  add_model(model, model.served_name, response);
  for (const std::string& alias : model.aliases) add_model(model, alias, response);
  return response;
}

}  // namespace kvasir::server
