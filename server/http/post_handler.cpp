#include "server/http/post_handler.h"

#include "core/check.h"
#include "server/http/json_reader.h"
#include "server/http/json_writer.h"
#include "server/http/request_json.h"
#include "server/kv_plan.h"
#include "server/kv_plan_json.h"
#include "server/wall_time.h"

#include <spdlog/spdlog.h>

#include <exception>
#include <utility>

namespace kvasir::server {
namespace {

using nlohmann::json;

AnswerShape answer_shape(Endpoint endpoint, const GenerateFields& fields, bool logprobs,
                         const std::string& id, const ModelInfo& model) {
  return {.endpoint = endpoint,
          .id = (endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-") + id,
          .created = unix_seconds(),
          .model = model.served_name,
          .system_fingerprint = model.system_fingerprint,
          .logprobs = logprobs,
          .return_token_ids = fields.return_token_ids,
          .include_usage = fields.include_usage,
          .continuous_usage_stats = fields.continuous_usage_stats,
          .choices_per_prompt = static_cast<std::uint32_t>(fields.n.value_or(1))};
}

PostOutcome started(Result<std::shared_ptr<Generation>> generation, AnswerShape shape, bool stream,
                    const GenerateService& service) {
  if (!generation) {
    const Error& error = generation.error();
    return error_response(error, service.retry_after_seconds(error));
  }
  return StartedAnswer{std::move(*generation), std::move(shape), stream};
}

CallContext call_context(const PostRequest& request, bool stream) {
  return {.arrival = request.arrival,
          .gone = request.gone,
          .tenant = request.tenant,
          .keeps_answer = !stream};
}

PostOutcome complete(const json& body, const PostRequest& request, GenerateService& service,
                     WakeFunction wake) {
  auto read = read_completion(body, service.limits());
  if (!read) return error_response(read.error());
  service.metrics().count_ignored_fields(read->ignored_fields);
  auto generation =
      service.complete(read->fields, std::move(wake), call_context(request, read->fields.stream));
  return started(
      std::move(generation),
      answer_shape(Endpoint::kCompletions, read->fields, read->fields.logprobs.has_value(),
                   request.answer_id, service.model()),
      read->fields.stream, service);
}

PostOutcome chat(const json& body, const PostRequest& request, GenerateService& service,
                 WakeFunction wake) {
  auto read = read_chat(body, service.limits());
  if (!read) return error_response(read.error());
  service.metrics().count_ignored_fields(read->ignored_fields);
  auto generation =
      service.chat(read->fields, std::move(wake), call_context(request, read->fields.stream));
  return started(std::move(generation),
                 answer_shape(Endpoint::kChat, read->fields, read->fields.logprobs,
                              request.answer_id, service.model()),
                 read->fields.stream, service);
}

Response tokenize(const json& body, const GenerateService& service) {
  auto read = read_tokenize(body, service.limits());
  if (!read) return error_response(read.error());
  service.metrics().count_ignored_fields(read->ignored_fields);
  auto tokens = service.tokenize(read->fields);
  if (!tokens) return error_response(tokens.error());
  JsonWriter out;
  out.begin_object().key("tokens").begin_array();
  for (const TokenId token : *tokens) out.unsigned_integer(token);
  out.end_array().member("count", tokens->size());
  out.member("max_model_len", service.model().context_tokens).end_object();
  return {.body = out.take(), .extra_fields = {}, .outcome = {}};
}

Response detokenize(const json& body, const GenerateService& service) {
  auto read = read_detokenize(body, service.limits());
  if (!read) return error_response(read.error());
  service.metrics().count_ignored_fields(read->ignored_fields);
  auto text = service.detokenize(read->fields);
  if (!text) return error_response(text.error());
  JsonWriter out;
  out.begin_object().member("prompt", *text).end_object();
  return {.body = out.take(), .extra_fields = {}, .outcome = {}};
}

Response plan(const json& body, const GenerateService& service) {
  auto read = read_plan(body, service.limits());
  if (!read) return error_response(read.error());
  service.metrics().count_ignored_fields(read->ignored_fields);
  const auto planned = served_plan(read->fields, service);
  if (!planned) return error_response(planned.error());
  return {.body = kv_plan_json(*planned), .extra_fields = {}, .outcome = {}};
}

PostOutcome handle(const PostRequest& request, GenerateService& service, WakeFunction wake) {
  auto body = read_json(request.body.text, service.limits());
  if (!body) return error_response(body.error());
  if (request.gone != nullptr && request.gone->load())
    return error_response({ErrorCode::kCancelled, "the client has gone", {}});
  switch (request.route) {
    case RouteId::kCompletions:
      return complete(*body, request, service, std::move(wake));
    case RouteId::kChat:
      return chat(*body, request, service, std::move(wake));
    case RouteId::kTokenize:
      return tokenize(*body, service);
    case RouteId::kPlan:
      return plan(*body, service);
    default:
      break;
  }
  KVASIR_CHECK(request.route == RouteId::kDetokenize,
               "not a POST route: " << static_cast<int>(request.route));
  return detokenize(*body, service);
}

}  // namespace

PostOutcome handle_post(const PostRequest& request, GenerateService& service, WakeFunction wake) {
  try {
    return handle(request, service, std::move(wake));
  } catch (const std::exception&
               failure) {  // memory at its end, or a library's own bug: this request alone fails
    spdlog::error("a request failed: {}", failure.what());
    return error_response({ErrorCode::kInternal, failure.what(), {}});
  }
}

}  // namespace kvasir::server
