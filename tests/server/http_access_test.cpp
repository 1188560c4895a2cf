// Who may ask what: API keys, pages of other origins, methods, and the routes that are there only
// when the operator wants them. Every answer's fields are looked at on the way.
#include "server/api_keys.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

#include <sys/stat.h>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;
using nlohmann::json;

namespace {

const std::string kCompletion = R"({"prompt":"x","max_tokens":2})";

/// A request of any method; `fields` are whole lines.
std::string request_bytes(std::string_view method, std::string_view path, std::string_view fields,
                          std::string_view body = "") {
  std::string bytes = std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n";
  if (!body.empty()) bytes += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return bytes + std::string(fields) + "\r\n" + std::string(body);
}

ClientResponse ask(Client& client, std::string_view method, std::string_view path,
                   std::string_view fields, std::string_view body = "") {
  client.send(request_bytes(method, path, fields, body));
  return client.read_response(method == "HEAD");
}

struct KeyedServer {
  kvasir::testing::TemporaryFolder folder;
  ApiKeys keys;
  std::unique_ptr<TestServer> server;

  explicit KeyedServer(HttpOptions options = {}) {
    const std::string path = folder.write("keys", "sk-one\nsk-two\n");
    ::chmod(path.c_str(), 0600);
    REQUIRE(keys.load(path));
    options.api_keys = &keys;
    server = std::make_unique<TestServer>(options);
  }
};

void check_refused_key(const ClientResponse& response) {
  CHECK(response.status == 401);
  CHECK(response.error_code() == "invalid_api_key");
  CHECK(response.json()["error"]["type"] == "invalid_request_error");
  CHECK(response.fields.at("www-authenticate") == "Bearer");
  CHECK(response.fields.at("x-should-retry") == "false");
  CHECK(response.body.find("sk-") == std::string::npos);
}

}  // namespace

TEST_CASE("HttpServer: routes that show or do anything need a key, probes do not", "[server]") {
  KeyedServer keyed({.tokenizer_info = TokenizerInfo{}});
  Client client(*keyed.server);
  const std::string with_key = "Authorization: Bearer sk-two\r\n";
  for (const char* path : {"/v1/models", "/v1/models/alias", "/v1/kv/status", "/tokenizer_info"}) {
    INFO(path);
    check_refused_key(client.get(path));
    CHECK(client.get(path, with_key).status == 200);
    client.send(request_bytes("HEAD", path, ""));
    CHECK(client.read_response(true).status == 401);
  }
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}) {
    INFO(path);
    check_refused_key(ask(client, "POST", path, "", "{}"));
    CHECK(ask(client, "POST", path, with_key, "{}").status == 400);
    CHECK(client.get(path).status == 405);
  }
  check_refused_key(ask(client, "POST", "/v1/kv/plan", "", "{}"));
  CHECK(ask(client, "POST", "/v1/kv/plan", with_key, "{}").status == 200);
  for (const char* path : {"/health", "/livez", "/readyz", "/v2/health/ready", "/v2/health/live",
                           "/v2/models/alias/ready", "/metrics", "/version"}) {
    INFO(path);
    CHECK(client.get(path).status == 200);
  }
  CHECK(client.get("/nothing").status == 404);
  CHECK(client.get("/").error_code() == "unknown_url");
}

TEST_CASE("HttpServer: only one whole key in one Authorization field lets in", "[server]") {
  KeyedServer keyed;
  Client client(*keyed.server);
  for (const char* value : {"Bearer sk-one", "bearer sk-one", "BEARER sk-two"}) {
    CHECK(ask(client, "POST", "/v1/completions", "Authorization: " + std::string(value) + "\r\n",
              kCompletion)
              .status == 200);
  }
  for (const char* fields :
       {"", "Authorization:\r\n", "Authorization: Bearer\r\n", "Authorization: Bearer \r\n",
        "Authorization: Bearer sk-on\r\n", "Authorization: Bearer sk-one1\r\n",
        "Authorization: Basic sk-one\r\n", "Authorization: sk-one\r\n",
        "Authorization: Bearer sk-one\r\nAuthorization: Bearer sk-one\r\n",
        "Authorization: Bearer sk-one\r\nX: y\r\nauthorization: Bearer bad\r\n",
        "X-Api-Key: sk-one\r\n", "Authorization: Bearer sk-one, Bearer sk-two\r\n"}) {
    INFO(fields);
    check_refused_key(ask(client, "POST", "/v1/completions", fields, kCompletion));
  }
  Client large(*keyed.server);
  large.send("GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " +
             std::string(1U << 20U, 'k') + "\r\n\r\n");
  CHECK(large.read_response().status == 431);
}

TEST_CASE("HttpServer: who is refused by the head alone is answered before the body", "[server]") {
  KeyedServer keyed;
  const std::string path = "/v1/completions";
  {
    Client client(*keyed.server);
    client.send(request_bytes("POST", path, "Content-Length: 5000000\r\nExpect: 100-continue\r\n"));
    const ClientResponse response = client.read_response();
    CHECK(response.status == 401);
    CHECK(response.fields.at("connection") == "close");
    CHECK(client.at_end());
  }
  {
    // What of the body comes all the same is dropped; it is never the next request.
    Client client(*keyed.server);
    client.send(request_bytes("POST", path, "Content-Length: 500000\r\n"));
    check_refused_key(client.read_response());
    std::string body;
    while (body.size() < 400'000) body += "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";
    client.send(body);
    CHECK(client.at_end());
  }
  // With a key the same head gets its 100, and a body that is whole keeps the connection.
  Client client(*keyed.server);
  client.send(request_bytes("POST", path,
                            "Authorization: Bearer sk-one\r\nExpect: 100-continue\r\n"
                            "Content-Length: " +
                                std::to_string(kCompletion.size()) + "\r\n"));
  CHECK(client.read_head().status == 100);
  client.send(kCompletion);
  CHECK(client.read_response().status == 200);
  check_refused_key(ask(client, "POST", path, "", kCompletion));
  CHECK(client.get("/livez").status == 200);
}

TEST_CASE("HttpServer: framing is judged before keys, keys before JSON", "[server]") {
  KeyedServer keyed;
  Client client(*keyed.server);
  check_refused_key(ask(client, "POST", "/v1/completions", "", "not json"));
  check_refused_key(
      ask(client, "POST", "/v1/completions", "Content-Type: text/plain\r\n", "not json"));
  CHECK(ask(client, "POST", "/v1/completions", "Authorization: Bearer sk-one\r\n", "not json")
            .error_code() == "invalid_json");
  Client broken(*keyed.server);
  broken.send(request_bytes("POST", "/v1/completions", "Transfer-Encoding: gzip\r\n"));
  CHECK(broken.read_response().status == 501);
}

TEST_CASE("HttpServer: the key's tenant reaches the prefix cache", "[server]") {
  KeyedServer keyed;
  Client client(*keyed.server);
  const std::string body = R"({"prompt":")" + std::string(40, 'x') + R"(","max_tokens":1})";
  const auto cached = [&](const std::string& key) {
    return ask(client, "POST", "/v1/completions", "Authorization: Bearer " + key + "\r\n", body)
        .json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        .get<int>();
  };
  CHECK(cached("sk-one") == 0);
  CHECK(cached("sk-one") > 0);
  CHECK(cached("sk-two") == 0);
}

TEST_CASE("HttpServer: without CORS configured OPTIONS is a wrong method", "[server]") {
  TestServer server;
  Client client(server);
  const ClientResponse response =
      ask(client, "OPTIONS", "/v1/completions",
          "Origin: http://app.test\r\nAccess-Control-Request-Method: POST\r\n");
  CHECK(response.status == 405);
  CHECK(response.fields.at("allow") == "POST");
  CHECK(!response.fields.contains("access-control-allow-origin"));
  CHECK(!client.get("/livez", "Origin: http://app.test\r\n")
             .fields.contains("access-control-allow-origin"));
}

TEST_CASE("HttpServer: pages of listed origins are let in, by name", "[server]") {
  KeyedServer keyed({.cors_origins = "http://app.test, https://other.test/"});
  Client client(*keyed.server);
  const std::string origin = "Origin: http://app.test\r\n";
  const ClientResponse preflight =
      ask(client, "OPTIONS", "/v1/completions",
          origin +
              "Access-Control-Request-Method: POST\r\n"
              "Access-Control-Request-Headers: authorization,x-evil\r\n");
  CHECK(preflight.status == 204);
  CHECK(preflight.fields.at("access-control-allow-origin") == "http://app.test");
  CHECK(preflight.fields.at("access-control-allow-methods") == "POST, OPTIONS");
  CHECK(preflight.fields.at("access-control-allow-headers").starts_with("Authorization, "));
  CHECK(preflight.fields.at("access-control-max-age") == "600");
  CHECK(preflight.fields.contains("vary"));
  CHECK(preflight.fields.contains("x-request-id"));
  CHECK(!preflight.fields.contains("content-length"));
  for (const auto& [name, value] : preflight.fields) CHECK(value.find("evil") == std::string::npos);

  const ClientResponse refused = client.get("/v1/models", origin);
  CHECK(refused.status == 401);
  CHECK(refused.fields.at("access-control-allow-origin") == "http://app.test");
  CHECK(refused.fields.at("access-control-expose-headers").find("x-request-id") == 0);
  CHECK(client.get("/livez", "Origin: https://other.test\r\n")
            .fields.at("access-control-allow-origin") == "https://other.test");
  for (const char* other :
       {"Origin: http://app.test.evil\r\n", "Origin: null\r\n", "Origin: http://app.tes\r\n", ""}) {
    const ClientResponse answer = client.get("/livez", other);
    CHECK(!answer.fields.contains("access-control-allow-origin"));
    CHECK(answer.fields.at("vary") == "Origin");
    const ClientResponse options = ask(client, "OPTIONS", "/livez", other);
    CHECK(options.status == 204);
    CHECK(options.fields.at("allow") == "GET, HEAD, OPTIONS");
    CHECK(!options.fields.contains("access-control-allow-methods"));
  }
  const std::string stream_body = R"({"prompt":"x","max_tokens":2,"stream":true})";
  const ClientResponse stream = ask(client, "POST", "/v1/completions",
                                    origin + "Authorization: Bearer sk-one\r\n", stream_body);
  CHECK(stream.fields.at("access-control-allow-origin") == "http://app.test");
  CHECK(stream.fields.at("content-type") == "text/event-stream; charset=utf-8");
  CHECK(events_of(stream.body).back() == "[DONE]");
  CHECK(ask(client, "OPTIONS", "/nothing", origin).status == 404);
  CHECK(ask(client, "PUT", "/livez", origin).fields.at("allow") == "GET, HEAD, OPTIONS");
}

TEST_CASE("HttpServer: a star lets any origin in and names none", "[server]") {
  TestServer server({.cors_origins = "*"});
  Client client(server);
  const ClientResponse answer = client.get("/livez", "Origin: http://any.test\r\n");
  CHECK(answer.fields.at("access-control-allow-origin") == "*");
  CHECK(!answer.fields.contains("vary"));
  CHECK(ask(client, "OPTIONS", "/v1/completions",
            "Origin: http://any.test\r\nAccess-Control-Request-Method: POST\r\n")
            .fields.at("access-control-allow-origin") == "*");
  CHECK(!client.get("/livez").fields.contains("access-control-allow-origin"));
}

TEST_CASE("HttpServer: HEAD is GET without its body", "[server]") {
  TestServer server;
  Client client(server);
  for (const char* path : {"/v1/models", "/livez", "/version", "/nothing", "/v1/completions"}) {
    INFO(path);
    ClientResponse get = client.get(path);
    const ClientResponse head = ask(client, "HEAD", path, "");
    CHECK(head.status == get.status);
    CHECK(head.fields.at("content-length") == get.fields.at("content-length"));
    CHECK(head.fields.at("content-type") == get.fields.at("content-type"));
  }
}

TEST_CASE("HttpServer: /tokenizer_info is there when asked for, and only then", "[server]") {
  TestServer without;
  CHECK(Client(without).get("/tokenizer_info").error_code() == "unknown_url");
  TestServer server({.tokenizer_info = TokenizerInfo{.bos_token = "<s>",
                                                     .eos_token = "</s>",
                                                     .pad_token = std::nullopt,
                                                     .chat_template = "{{ \"x\" }}"}});
  const json info = Client(server).get("/tokenizer_info").json();
  CHECK(info["bos_token"] == "<s>");
  CHECK(info["eos_token"] == "</s>");
  CHECK(info["pad_token"].is_null());
  CHECK(info["chat_template"] == "{{ \"x\" }}");
  CHECK(info["model_max_length"] == kTinyContext);
}

TEST_CASE("HttpServer: a listener of its own serves metrics and nothing else", "[server]") {
  KeyedServer keyed({.metrics_port = 0});
  TestServer& server = *keyed.server;
  REQUIRE(server.door->metrics_port() != 0);
  Client door(server);
  CHECK(door.get("/metrics").error_code() == "unknown_url");
  Client metrics(tcp_wire(server.door->metrics_port()));
  CHECK(metrics.get("/metrics").body.find("kvasir_http_connections") != std::string::npos);
  for (const char* path : {"/livez", "/v1/models", "/version"})
    CHECK(metrics.get(path).status == 404);
  CHECK(ask(metrics, "POST", "/v1/completions", "Authorization: Bearer sk-one\r\n", kCompletion)
            .status == 404);
  CHECK(TestServer().door->metrics_port() == 0);
}

TEST_CASE("HttpServer: request ids are the client's own or new, never other bytes", "[server]") {
  TestServer server;
  Client client(server);
  for (const std::string& id : {std::string("a"), std::string("A.b_c:d-9"), std::string(128, 'x')})
    CHECK(client.get("/livez", "X-Request-Id: " + id + "\r\n").fields.at("x-request-id") == id);
  for (const std::string& id :
       {std::string(), std::string(129, 'x'), std::string("a b"), std::string("a,b"),
        std::string("\xE2\x80\xAE"), std::string("a\tb"), std::string("\"}"), std::string("%0d")}) {
    const ClientResponse answer = client.get("/livez", "X-Request-Id: " + id + "\r\n");
    CHECK(answer.status == 200);
    CHECK(answer.fields.at("x-request-id").starts_with("req-"));
  }
  for (const char* id : {"a\x1b[2J", "a\rb", "a\nb"}) {
    Client other(server);
    other.send("GET /livez HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + std::string(id) + "\r\n\r\n");
    const ClientResponse answer = other.read_response();
    CHECK(answer.status == 400);
    CHECK(answer.fields.at("x-request-id").starts_with("req-"));
  }
}
