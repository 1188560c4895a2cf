// What the service has to say, as protobuf messages. What clients send is request_message's.
#pragma once

#include "kvasir/v1/inference.pb.h"
#include "server/generate_service.h"
#include "server/generation.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir::server {

/// What all messages of one answer share.
struct AnswerHead {
  std::string id;
  std::int64_t created_unix = 0;
  std::string model;
  std::string system_fingerprint;
};

/// Adds what came for a choice to the end of what is there.
void append_delta(ChoiceDelta delta, v1::Choice& choice);
void fill_usage(const Usage& usage, v1::Usage& message);
/// Of each entry at most `num_top` best tokens.
void fill_prompt_logprobs(const std::vector<LogprobEntry>& entries, std::uint32_t num_top,
                          v1::PromptLogprobs& message);

/// `Message` is any of CompleteResponse, CompleteChunk, ChatResponse, ChatChunk.
template <typename Message>
void fill_head(const AnswerHead& head, Message& message) {
  message.set_id(head.id);
  message.set_created(head.created_unix);
  message.set_model(head.model);
  message.set_system_fingerprint(head.system_fingerprint);
}

/// Nothing where the request wants no ids.
template <typename Message>
void fill_prompt_token_ids(const Generation& generation, Message& message) {
  if (!generation.lists_token_ids()) return;
  for (const std::vector<TokenId>& prompt : generation.prompt_token_ids()) {
    v1::TokenIds* ids = message.add_prompt_token_ids();
    for (const TokenId token : prompt) ids->add_ids(token);
  }
}

/// Adds the logprobs of a prompt, where they are asked for.
template <typename Message>
void add_prompt_logprobs(const Generation& generation, std::uint32_t prompt, Message& message) {
  if (!generation.listed_prompt_top()) return;
  v1::PromptLogprobs* list = message.add_prompt_logprobs();
  list->set_prompt_index(prompt);
  fill_prompt_logprobs(generation.prompt_logprobs(prompt), *generation.listed_prompt_top(), *list);
}

[[nodiscard]] v1::ListModelsResponse models_message(const ModelInfo& model);

}  // namespace kvasir::server
