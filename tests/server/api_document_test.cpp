// docs/API.md and the OpenAPI document against the tables and routes that they are made from.
#include "server/api_document.h"

#include "server/api_routes.h"
#include "server/http/routes.h"
#include "server/openapi.h"
#include "tests/support/catch.h"

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

using namespace kvasir;
using namespace kvasir::server;
using nlohmann::json;

namespace {

const RequestLimits kLimits;

json document(bool needs_key) {
  return json::parse(openapi_document({.version = "1.2.3",
                                       .bounds = {.vocab_size = 300, .limits = kLimits},
                                       .needs_key = needs_key}));
}

void collect_refs(const json& value, std::set<std::string>& refs) {
  if (value.is_object() && value.contains("$ref")) refs.insert(value["$ref"]);
  if (value.is_structured()) {
    for (const json& item : value) collect_refs(item, refs);
  }
}

}  // namespace

TEST_CASE("api_document: docs/API.md is what the tables say", "[server]") {
  const std::string path = KVASIR_SOURCE_DIR "/docs/API.md";
  if (std::getenv("KVASIR_UPDATE_GOLDEN") != nullptr)
    std::ofstream(path, std::ios::binary) << api_document();
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  INFO("rewrite it with KVASIR_UPDATE_GOLDEN=1");
  CHECK(text == api_document());
}

TEST_CASE("openapi: every route of the document is one of the door's", "[server]") {
  const json paths = document(false)["paths"];
  CHECK(paths.size() == api_routes().size());
  for (const ApiRoute& route : api_routes()) {
    INFO(route.path);
    const auto match = match_route(route.path);
    REQUIRE(match.has_value());
    CHECK(match->route.path_template == route.path);
    CHECK(match->route.is_post == route.request.has_value());
    CHECK(match->route.needs_key == route.needs_key);
    CHECK(paths[std::string(route.path)].contains(route.request ? "post" : "get"));
  }
}

TEST_CASE("openapi: references lead somewhere", "[server]") {
  const json whole = document(true);
  std::set<std::string> refs;
  collect_refs(whole, refs);
  CHECK(refs.size() > 10);
  for (const std::string& ref : refs) {
    INFO(ref);
    CHECK(whole.contains(json::json_pointer(ref.substr(1))));
  }
}

TEST_CASE("openapi: keys are asked for only where the operator does", "[server]") {
  const json open = document(false);
  CHECK_FALSE(open["components"].contains("securitySchemes"));
  for (const auto& path : open["paths"].items()) {
    for (const json& operation : path.value()) {
      CHECK_FALSE(operation.contains("security"));
      CHECK_FALSE(operation["responses"].contains("401"));
    }
  }
  const json keyed = document(true);
  CHECK(keyed["paths"]["/v1/completions"]["post"]["responses"].contains("401"));
  CHECK(keyed["paths"]["/v1/completions"]["post"].contains("security"));
  CHECK_FALSE(keyed["paths"]["/livez"]["get"].contains("security"));
}

TEST_CASE("openapi: a body's schema has every row, with its range and default", "[server]") {
  const json whole = document(false);
  const auto properties = [&whole](const char* path) {
    return whole["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
                ["properties"];
  };
  const json completion = properties("/v1/completions");
  for (const FieldRow& row : field_table()) {
    if ((row.users & kOfCompletions) == 0) continue;
    std::string pointer(1, '/');
    pointer += row.name;
    if (const auto dot = pointer.find('.'); dot != std::string::npos)
      pointer.replace(dot, 1, "/properties/");
    INFO(row.name);
    CHECK(completion.contains(json::json_pointer(pointer)));
  }
  CHECK(completion["temperature"]["minimum"] == 0.0);
  CHECK(completion["temperature"]["maximum"] == 2.0);
  CHECK(completion["temperature"]["default"] == 1.0);
  CHECK(completion["n"]["maximum"] == 128);
  CHECK(completion["repetition_penalty"]["minimum"] > 0.0);
  CHECK(completion["stop_token_ids"]["items"]["maximum"] == 299);
  CHECK(completion["cache_salt"]["minLength"] == 1);
  CHECK(completion["cache_salt"]["maxLength"] == 1024);
  CHECK(completion["stop"]["anyOf"][1]["maxItems"] == 16);
  CHECK(completion["stop"]["anyOf"][1]["items"]["maxLength"] == 256);
  CHECK(completion["logit_bias"]["additionalProperties"]["minimum"] == -100.0);
  CHECK(completion["max_tokens"]["type"] == json::array({"integer", "null"}));
  CHECK(completion["best_of"]["enum"] == json::array({1, nullptr}));
  CHECK(properties("/v1/chat/completions")["messages"]["maxItems"] == 2048);
}
