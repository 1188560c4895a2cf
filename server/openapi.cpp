#include "server/openapi.h"

#include "server/api_routes.h"
#include "server/error_map.h"
#include "server/openapi_answers.h"
#include "server/openapi_fields.h"

#include <map>
#include <set>
#include <vector>

namespace kvasir::server {
namespace {

OrderedJson schema_ref(std::string_view name) {
  return {{"$ref", "#/components/schemas/" + std::string(name)}};
}

OrderedJson json_content(OrderedJson schema) {
  return {{"application/json", {{"schema", std::move(schema)}}}};
}

/// What stands in the head of every answer.
OrderedJson answer_headers(int status) {
  OrderedJson headers{
      {"x-request-id",
       {{"required", true},
        {"description", "The request's own if it was fit to be shown, else a new one."},
        {"schema", {{"type", "string"}, {"pattern", "^[A-Za-z0-9._:-]{1,128}$"}}}}},
      {"openai-processing-ms",
       {{"required", true}, {"schema", {{"type", "integer"}, {"minimum", 0}}}}}};
  if (status == 429 || status == 503) {
    headers["Retry-After"] = {
        {"required", true},
        {"description", "Seconds."},
        {"schema", {{"type", "integer"}, {"minimum", 1}, {"maximum", kMaxRetryAfterSeconds}}}};
  }
  if (status == 401) {
    headers["WWW-Authenticate"] = {{"required", true},
                                   {"schema", {{"type", "string"}, {"const", "Bearer"}}}};
  }
  return headers;
}

OrderedJson good_answer(const ApiRoute& route) {
  OrderedJson content;
  if (!route.answer.empty()) content = json_content(schema_ref(route.answer));
  if (route.answer.empty()) content = {{"text/plain", {{"schema", {{"type", "string"}}}}}};
  if (route.streams) {
    content["text/event-stream"] = {
        {"schema",
         {{"type", "object"},
          {"description", "One event, with \"stream\": true."},
          {"required", OrderedJson::array({"data"})},
          {"properties",
           {{"data",
             {{"type", "string"},
              {"description", "A " + std::string(route.answer) +
                                  "Chunk or an Error as JSON; [DONE] at the end."}}}}}}}};
  }
  return {
      {"description", "Done."}, {"headers", answer_headers(200)}, {"content", std::move(content)}};
}

OrderedJson responses(const ApiRoute& route, bool needs_key) {
  std::map<int, std::vector<std::string_view>> codes;  // by status
  const auto add = [&codes](ErrorCode code) {
    const ErrorMapping& mapping = error_mapping(code);
    codes[mapping.http_status].push_back(mapping.code);
  };
  for (const ErrorCode code : framing_errors()) add(code);
  for (const ErrorCode code : route.errors) add(code);
  if (needs_key && route.needs_key) add(ErrorCode::kInvalidApiKey);
  OrderedJson out{{"200", good_answer(route)}};
  for (const auto& [status, names] : codes) {
    std::string description;
    for (const std::string_view name : names)
      description += (description.empty() ? "" : ", ") + std::string(name);
    out[std::to_string(status)] = {{"description", description + "."},
                                   {"headers", answer_headers(status)},
                                   {"content", json_content(schema_ref("Error"))}};
  }
  return out;
}

OrderedJson operation(const ApiRoute& route, const OpenApiFacts& facts) {
  OrderedJson out{{"operationId", route.operation}, {"summary", route.purpose}};
  if (route.path.find("{id}") != std::string_view::npos) {
    out["parameters"] = OrderedJson::array({{{"name", "id"},
                                             {"in", "path"},
                                             {"required", true},
                                             {"description", "Served name or alias."},
                                             {"schema", {{"type", "string"}, {"minLength", 1}}}}});
  }
  if (route.request) {
    out["requestBody"] = {{"required", true},
                          {"content", json_content(request_schema(*route.request, facts.bounds))}};
  }
  out["responses"] = responses(route, facts.needs_key);
  if (facts.needs_key && route.needs_key)
    out["security"] = OrderedJson::array({{{"bearer", OrderedJson::array()}}});
  return out;
}

}  // namespace

std::string openapi_document(const OpenApiFacts& facts) {
  OrderedJson paths = OrderedJson::object();
  for (const ApiRoute& route : api_routes())
    paths[std::string(route.path)][route.request ? "post" : "get"] = operation(route, facts);
  OrderedJson components{{"schemas", answer_schemas()}};
  if (facts.needs_key) {
    components["securitySchemes"] = {
        {"bearer",
         {{"type", "http"}, {"scheme", "bearer"}, {"description", "A key of --api-key-file."}}}};
  }
  const OrderedJson document{
      {"openapi", "3.1.0"},
      {"info",
       {{"title", "kvasir"},
        {"version", facts.version},
        {"description",
         "OpenAI-compatible serving of one causal language model. In requests null is the same as "
         "absent, and unknown fields are accepted."}}},
      {"paths", std::move(paths)},
      {"components", std::move(components)}};
  return document.dump();
}

}  // namespace kvasir::server
