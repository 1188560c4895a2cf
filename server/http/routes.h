// Which paths there are, with which methods, and the answers that need no generation. What a POST
// does is the session's, since it takes time.
#pragma once

#include "core/result.h"
#include "server/generate_service.h"
#include "server/http/http_server.h"
#include "server/http/response.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir::server {

enum class RouteId : std::uint8_t {
  kCompletions,
  kChat,
  kTokenize,
  kDetokenize,
  kPlan,
  kModels,
  kModel,
  kLive,
  kReady,
  kV2Live,
  kV2Ready,
  kV2ModelReady,
  kVersion,
  kMetrics,
  kKvStatus,
  kTokenizerInfo,
  kOpenApi,
};

struct Route {
  RouteId id{};
  std::string_view path_template;  // "/v1/models/{id}"
  bool is_post = false;            // else GET and HEAD
  bool needs_key = false;          // where the operator asks for keys
};

struct RouteMatch {
  Route route;
  std::string parameter;  // what stood for {id}, percent-decoded
};

/// By exact path: no normalising, no trailing slash, the query is left out. Errors: kUnknownUrl.
[[nodiscard]] Result<RouteMatch> match_route(std::string_view target);

/// The refusal of a target that leads nowhere.
[[nodiscard]] Error nothing_at(std::string_view target);

/// The answer of a GET route.
[[nodiscard]] Response answer_get(const RouteMatch& match, const GenerateService& service,
                                  const HttpOptions& options, std::uint32_t open_connections);

}  // namespace kvasir::server
