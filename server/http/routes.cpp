#include "server/http/routes.h"

#include "core/check.h"
#include "server/http/facts_json.h"
#include "server/http/header_text.h"
#include "server/http/json_writer.h"
#include "server/openapi.h"
#include "server/shown_value.h"
#include "server/utf8.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>

namespace kvasir::server {
namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr std::string_view kV2ModelPrefix = "/v2/models/";
constexpr std::string_view kV2ReadySuffix = "/ready";

constexpr bool kPost = true;
constexpr bool kGet = false;
constexpr bool kKey = true;
constexpr bool kOpen = false;  // probes and the like: they tell nothing of anyone's requests

constexpr std::array kRoutes = {
    Route{RouteId::kCompletions, "/v1/completions", kPost, kKey},
    Route{RouteId::kChat, "/v1/chat/completions", kPost, kKey},
    Route{RouteId::kTokenize, "/tokenize", kPost, kKey},
    Route{RouteId::kDetokenize, "/detokenize", kPost, kKey},
    Route{RouteId::kPlan, "/v1/kv/plan", kPost, kKey},
    Route{RouteId::kTokenizerInfo, "/tokenizer_info", kGet, kKey},
    Route{RouteId::kModels, "/v1/models", kGet, kKey},
    Route{RouteId::kKvStatus, "/v1/kv/status", kGet, kKey},
    Route{RouteId::kLive, "/livez", kGet, kOpen},
    Route{RouteId::kLive, "/health", kGet, kOpen},
    Route{RouteId::kReady, "/readyz", kGet, kOpen},
    Route{RouteId::kV2Ready, "/v2/health/ready", kGet, kOpen},
    Route{RouteId::kV2Live, "/v2/health/live", kGet, kOpen},
    Route{RouteId::kVersion, "/version", kGet, kOpen},
    Route{RouteId::kMetrics, "/metrics", kGet, kOpen},
    Route{RouteId::kOpenApi, "/openapi.json", kGet, kOpen},
};
constexpr Route kModelRoute{RouteId::kModel, "/v1/models/{id}", kGet, kKey};
constexpr Route kModelReadyRoute{RouteId::kV2ModelReady, "/v2/models/{id}/ready", kGet, kOpen};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/// Nothing for a broken escape, for what is not UTF-8 and for a NUL.
std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_digit(text[i + 1]);
    const int low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  if (!is_utf8(decoded) || decoded.find('\0') != std::string::npos) return std::nullopt;
  return decoded;
}

/// The path of a target in origin form, or in absolute form as proxies send it.
std::string_view path_of(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!equal_ignoring_case(target.substr(0, scheme.size()), scheme)) continue;
    const std::size_t end = target.find_first_of("/?", scheme.size());  // of the authority
    if (end == std::string_view::npos || target[end] != '/') return "/";
    target.remove_prefix(end);
    break;
  }
  return target.substr(0, target.find('?'));
}

void write_model(const ModelInfo& model, std::string_view id, JsonWriter& json) {
  json.begin_object()
      .member("id", id)
      .member("object", "model")
      .key("created")
      .integer(model.created_unix);
  json.member("owned_by", "kvasir")
      .member("max_model_len", model.context_tokens)
      .member("root", model.root);
  json.key("parent").null().end_object();
}

std::string models_body(const ModelInfo& model) {
  JsonWriter json;
  json.begin_object().member("object", "list").key("data").begin_array();
  write_model(model, model.served_name, json);
  for (const std::string& alias : model.aliases) write_model(model, alias, json);
  json.end_array().end_object();
  return json.take();
}

Response one_model(const GenerateService& service, const std::string& name) {
  if (auto ok = service.check_model(name); !ok) return error_response(ok.error());
  JsonWriter json;
  write_model(service.model(), name, json);
  return {.body = json.take(), .extra_fields = {}, .outcome = {}};
}

Response live(const GenerateService& service, std::string body) {
  if (service.alive()) return {.body = std::move(body), .extra_fields = {}, .outcome = {}};
  return error_response({ErrorCode::kEngineUnavailable, "the engine makes no progress", {}});
}

Response ready(const GenerateService& service, std::string body) {
  const Result<void> serving = service.check_serving();
  if (serving) return {.body = std::move(body), .extra_fields = {}, .outcome = {}};
  return error_response(serving.error(), service.retry_after_seconds(serving.error()));
}

std::string tokenizer_info_body(const TokenizerInfo& info, std::uint32_t context_tokens) {
  JsonWriter json;
  const auto member = [&json](std::string_view name, const std::optional<std::string>& value) {
    json.key(name);
    if (value) {
      json.string(*value);
    } else {
      json.null();
    }
  };
  json.begin_object();
  member("bos_token", info.bos_token);
  member("eos_token", info.eos_token);
  member("pad_token", info.pad_token);
  member("chat_template", info.chat_template);
  json.member("model_max_length", context_tokens).end_object();
  return json.take();
}

std::string metrics_body(const GenerateService& service, const HttpOptions& options,
                         std::uint32_t open_connections) {
  return service.metrics().text({.engine = service.status(),
                                 .http_connections = open_connections,
                                 .version = options.version,
                                 .commit = options.commit,
                                 .build = options.build});
}

std::string openapi_body(const GenerateService& service, const HttpOptions& options) {
  return openapi_document({.version = options.version,
                           .bounds = {service.model().vocab_size, service.limits()},
                           .needs_key = options.api_keys != nullptr});
}

std::string version_body(const HttpOptions& options) {
  JsonWriter json;
  json.begin_object().member("version", options.version).member("commit", options.commit);
  json.member("build", options.build).end_object();
  return json.take();
}

}  // namespace

Result<RouteMatch> match_route(std::string_view target) {
  const std::string_view path = path_of(target);
  const auto* route = std::find_if(kRoutes.begin(), kRoutes.end(),
                                   [path](const Route& r) { return r.path_template == path; });
  if (route != kRoutes.end()) return RouteMatch{*route, {}};
  if (path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size()) {
    if (auto name = percent_decoded(path.substr(kModelPrefix.size())))
      return RouteMatch{kModelRoute, std::move(*name)};
  }
  if (path.starts_with(kV2ModelPrefix) && path.ends_with(kV2ReadySuffix) &&
      path.size() > kV2ModelPrefix.size() + kV2ReadySuffix.size()) {
    const std::size_t length = path.size() - kV2ModelPrefix.size() - kV2ReadySuffix.size();
    if (auto name = percent_decoded(path.substr(kV2ModelPrefix.size(), length)))
      return RouteMatch{kModelReadyRoute, std::move(*name)};
  }
  return tl::unexpected<Error>(nothing_at(target));
}

Error nothing_at(std::string_view target) {
  return {ErrorCode::kUnknownUrl, "there is nothing at " + shown_value(path_of(target)), {}};
}

Response answer_get(const RouteMatch& match, const GenerateService& service,
                    const HttpOptions& options, std::uint32_t open_connections) {
  switch (match.route.id) {
    case RouteId::kModels:
      return {.body = models_body(service.model()), .extra_fields = {}, .outcome = {}};
    case RouteId::kModel:
      return one_model(service, match.parameter);
    case RouteId::kLive:
      return live(service, R"({"status":"ok"})");
    case RouteId::kReady:
      return ready(service, R"({"status":"ready"})");
    case RouteId::kV2Live:
      return live(service, R"({"live":true})");
    case RouteId::kV2Ready:
      return ready(service, R"({"ready":true})");
    case RouteId::kV2ModelReady:
      if (auto ok = service.check_model(match.parameter); !ok) return error_response(ok.error());
      return ready(service, R"({"ready":true})");
    case RouteId::kVersion:
      return {.body = version_body(options), .extra_fields = {}, .outcome = {}};
    case RouteId::kMetrics:
      return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
              .body = metrics_body(service, options, open_connections),
              .extra_fields = {},
              .outcome = {}};
    case RouteId::kOpenApi:
      return {.body = openapi_body(service, options), .extra_fields = {}, .outcome = {}};
    case RouteId::kKvStatus:
      return {.body = kv_status_body(kv_status(service)), .extra_fields = {}, .outcome = {}};
    case RouteId::kTokenizerInfo:
      KVASIR_CHECK(options.tokenizer_info.has_value(), "tokenizer_info is off");
      return {.body = tokenizer_info_body(*options.tokenizer_info, service.model().context_tokens),
              .extra_fields = {},
              .outcome = {}};
    case RouteId::kCompletions:
    case RouteId::kChat:
    case RouteId::kTokenize:
    case RouteId::kDetokenize:
    case RouteId::kPlan:
      break;
  }
  KVASIR_CHECK(false, "not a GET route: " << match.route.path_template);
}

}  // namespace kvasir::server
