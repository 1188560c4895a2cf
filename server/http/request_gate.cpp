#include "server/http/request_gate.h"

#include "server/api_keys.h"
#include "server/http/header_text.h"

#include <string>
#include <string_view>
#include <utility>

namespace kvasir::server {
namespace {

std::string allowed_methods(const Route& route, const CorsPolicy& cors) {
  std::string methods = route.is_post ? "POST" : "GET, HEAD";
  if (cors.enabled()) methods += ", OPTIONS";
  return methods;
}

Response method_refusal(const std::string& allowed) {
  Response response =
      error_response({ErrorCode::kMethodNotSupported, "the method must be one of: " + allowed, {}});
  response.extra_fields += "Allow: " + allowed + "\r\n";
  return response;
}

/// What is wrong with the fields that describe a POST's body.
std::optional<Error> body_refusal(const RequestHead& head) {
  if (!head.has_body_framing) {
    return Error{ErrorCode::kLengthRequired, "a body with its Content-Length is needed", {}};
  }
  if (!is_json_type(head.content_type)) {
    return Error{ErrorCode::kUnsupportedMediaType,
                 "the Content-Type must be application/json, in UTF-8",
                 {}};
  }
  if (!head.content_encoding.empty() && !equal_ignoring_case(head.content_encoding, "identity")) {
    return Error{ErrorCode::kUnsupportedMediaType, "the Content-Encoding must be identity", {}};
  }
  return std::nullopt;
}

Result<std::uint64_t> tenant_of(const RequestHead& head, const ApiKeys* keys) {
  if (keys == nullptr || !keys->required()) return 0;
  if (head.num_authorizations > 1) {
    return fail(ErrorCode::kInvalidApiKey, "there must be exactly one Authorization field");
  }
  return keys->tenant_of(head.num_authorizations == 0
                             ? std::nullopt
                             : std::optional<std::string_view>(head.authorization));
}

bool is_served(const Route& route, DoorKind door, const HttpOptions& options) {
  const bool has_metrics_door = options.metrics_port.has_value();
  if (door == DoorKind::kMetrics) return route.id == RouteId::kMetrics;
  if (route.id == RouteId::kMetrics) return !has_metrics_door;
  return route.id != RouteId::kTokenizerInfo || options.tokenizer_info.has_value();
}

}  // namespace

GateVerdict judge_head(const RequestHead& head, DoorKind door, const HttpShared& shared) {
  GateVerdict verdict;
  Result<RouteMatch> match = match_route(head.target);
  if (match && !is_served(match->route, door, shared.options))
    match = tl::unexpected<Error>(nothing_at(head.target));
  if (!match) {
    verdict.answer = error_response(match.error());
    return verdict;
  }
  verdict.match = std::move(*match);
  const Route& route = verdict.match->route;
  const std::string allowed = allowed_methods(route, shared.cors);
  if (head.method == "OPTIONS" && shared.cors.enabled()) {
    verdict.answer = shared.cors.preflight(head.origin, allowed);
    return verdict;
  }
  const bool is_allowed =
      route.is_post ? head.method == "POST" : head.method == "GET" || head.method == "HEAD";
  if (!is_allowed) {
    verdict.answer = method_refusal(allowed);
    return verdict;
  }
  if (route.needs_key) {
    const Result<std::uint64_t> tenant = tenant_of(head, shared.options.api_keys);
    if (!tenant) {
      verdict.answer = error_response(tenant.error());
      return verdict;
    }
    verdict.tenant = *tenant;
  }
  if (route.is_post) {
    if (const auto error = body_refusal(head)) verdict.answer = error_response(*error);
  }
  return verdict;
}

}  // namespace kvasir::server
