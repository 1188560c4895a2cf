#include "server/api_routes.h"

#include <array>
#include <initializer_list>

namespace kvasir::server {
namespace {

using E = ErrorCode;

std::vector<ErrorCode> joined(std::initializer_list<std::vector<ErrorCode>> lists) {
  std::vector<ErrorCode> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::vector<ApiRoute> make_routes() {
  const std::vector<ErrorCode> body = {
      E::kLengthRequired, E::kUnsupportedMediaType, E::kInvalidJson,          E::kJsonTooDeep,
      E::kInvalidType,    E::kMissingParameter,     E::kUnsupportedParameter, E::kModelNotFound};
  const std::vector<ErrorCode> rendered = {E::kUnsupportedContent, E::kInvalidTemplateInput};
  const std::vector<ErrorCode> generated = {
      E::kContextLengthExceeded, E::kDeadlineExceeded, E::kQueueFull,
      E::kModelLoading,          E::kDraining,         E::kEngineUnavailable};
  const std::vector<ErrorCode> not_ready = {E::kModelLoading, E::kDraining, E::kEngineUnavailable};
  return {
      {.path = "/v1/completions",
       .operation = "createCompletion",
       .purpose = "Completes one prompt or several.",
       .needs_key = true,
       .request = kOfCompletions,
       .answer = "Completion",
       .errors = joined({body, generated}),
       .streams = true},
      {.path = "/v1/chat/completions",
       .operation = "createChatCompletion",
       .purpose = "Answers a conversation, rendered by the model's chat template.",
       .needs_key = true,
       .request = kOfChat,
       .answer = "ChatCompletion",
       .errors = joined({body, rendered, generated}),
       .streams = true},
      {.path = "/tokenize",
       .operation = "tokenize",
       .purpose = "Text or messages to token ids.",
       .needs_key = true,
       .request = kOfTokenize,
       .answer = "Tokens",
       .errors = joined({body, rendered})},
      {.path = "/detokenize",
       .operation = "detokenize",
       .purpose = "Token ids to text.",
       .needs_key = true,
       .request = kOfDetokenize,
       .answer = "Text",
       .errors = body},
      {.path = "/v1/kv/plan",
       .operation = "planKv",
       .purpose = "What the KV cache of a model costs and saves: of a preset, of numbers of your "
                  "own, or of the served model.",
       .needs_key = true,
       .request = kOfPlan,
       .answer = "KvPlan",
       .errors = body},
      {.path = "/tokenizer_info",
       .operation = "getTokenizerInfo",
       .purpose = "Special tokens and the chat template; only with --tokenizer-info.",
       .needs_key = true,
       .answer = "TokenizerInfo",
       .errors = {E::kUnknownUrl}},
      {.path = "/v1/models",
       .operation = "listModels",
       .purpose = "The served model, once for each name it goes by.",
       .needs_key = true,
       .answer = "Models"},
      {.path = "/v1/models/{id}",
       .operation = "getModel",
       .purpose = "One name of the served model; a slash in it may be sent as %2F or as it is.",
       .needs_key = true,
       .answer = "Model",
       .errors = {E::kUnknownUrl, E::kModelNotFound}},
      {.path = "/v1/kv/status",
       .operation = "getKvStatus",
       .purpose = "What the KV cache and the engine hold now, and counts since start.",
       .needs_key = true,
       .answer = "KvStatus"},
      {.path = "/livez",
       .operation = "getLive",
       .purpose = "Whether the engine makes progress or is idle.",
       .answer = "Status",
       .errors = {E::kEngineUnavailable}},
      {.path = "/health",
       .operation = "getHealth",
       .purpose = "As /livez.",
       .answer = "Status",
       .errors = {E::kEngineUnavailable}},
      {.path = "/readyz",
       .operation = "getReady",
       .purpose = "Whether requests are taken.",
       .answer = "Status",
       .errors = not_ready},
      {.path = "/v2/health/ready",
       .operation = "getV2Ready",
       .purpose = "As /readyz, under the name of the Open Inference Protocol.",
       .answer = "V2Ready",
       .errors = not_ready},
      {.path = "/v2/health/live",
       .operation = "getV2Live",
       .purpose = "As /livez, under the name of the Open Inference Protocol.",
       .answer = "V2Live",
       .errors = {E::kEngineUnavailable}},
      {.path = "/v2/models/{id}/ready",
       .operation = "getV2ModelReady",
       .purpose = "Whether requests for a model are taken.",
       .answer = "V2Ready",
       .errors = joined({not_ready, {E::kUnknownUrl, E::kModelNotFound}})},
      {.path = "/version",
       .operation = "getVersion",
       .purpose = "Which build answers.",
       .answer = "Version"},
      {.path = "/metrics",
       .operation = "getMetrics",
       .purpose = "Prometheus text; elsewhere with --metrics-port.",
       .errors = {E::kUnknownUrl}},
      {.path = "/openapi.json",
       .operation = "getOpenApi",
       .purpose = "This interface as an OpenAPI document.",
       .answer = "OpenApi"},
  };
}

}  // namespace

std::span<const ApiRoute> api_routes() {
  static const std::vector<ApiRoute> routes = make_routes();
  return routes;
}

std::span<const ErrorCode> framing_errors() {
  static constexpr std::array kErrors = {E::kInvalidValue,
                                         E::kRequestTimeout,
                                         E::kBodyTooLarge,
                                         E::kUriTooLong,
                                         E::kExpectationFailed,
                                         E::kHeadersTooLarge,
                                         E::kUnsupportedTransferCoding,
                                         E::kHttpVersionNotSupported,
                                         E::kInternal};
  return kErrors;
}

}  // namespace kvasir::server
