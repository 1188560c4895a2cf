// What the REST door answers to requests that are in order, whole and streamed, and on one
// connection after another.
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <array>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>
#include <unistd.h>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;
using nlohmann::json;

namespace {

/// The text, reason and usage of a stream, joined; checks the shape of every chunk on the way.
struct Joined {
  std::string text;
  std::string finish_reason;
  json logprobs = json::array();
  json last_usage;
};

Joined join_chat(const std::string& body) {
  Joined joined;
  const std::vector<std::string> events = events_of(body);
  REQUIRE(!events.empty());
  REQUIRE(events.back() == "[DONE]");
  bool role_seen = false;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const json chunk = json::parse(events[i]);
    CHECK(chunk["object"] == "chat.completion.chunk");
    CHECK(chunk["id"].get<std::string>().starts_with("chatcmpl-"));
    CHECK(chunk["system_fingerprint"] == "fp_test");
    if (chunk.contains("usage") && !chunk["usage"].is_null()) joined.last_usage = chunk["usage"];
    if (chunk["choices"].empty()) continue;
    const json& choice = chunk["choices"][0];
    CHECK(choice.contains("logprobs"));
    CHECK(choice.contains("finish_reason"));
    const json& delta = choice["delta"];
    if (!role_seen) {
      CHECK(delta == json({{"role", "assistant"}, {"content", ""}}));
      role_seen = true;
    } else if (choice["finish_reason"].is_null()) {
      CHECK(!delta["content"].get<std::string>().empty());
      CHECK(!delta.contains("role"));
      joined.text += delta["content"].get<std::string>();
    } else {
      CHECK(delta.empty());
      joined.finish_reason = choice["finish_reason"];
    }
    if (!choice["logprobs"].is_null()) {
      for (const json& entry : choice["logprobs"]["content"]) joined.logprobs.push_back(entry);
    }
  }
  return joined;
}

/// What ::1 answers; nothing where this machine has no such address.
std::optional<std::string> get_over_ipv6(std::uint16_t port, std::string_view path) {
  const int client = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  std::optional<std::string> answer;
  if (client >= 0 && ::bind(client, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    answer.emplace();
    address.sin6_port = htons(port);
    const std::string request =
        "GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    if (::connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
        ::send(client, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
      std::array<char, 512> bytes{};
      const ssize_t received = ::recv(client, bytes.data(), bytes.size(), 0);
      answer->assign(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(received, 0)));
    }
  }
  if (client >= 0) ::close(client);
  return answer;
}

}  // namespace

TEST_CASE("HttpServer: a completion has OpenAI's shape", "[server]") {
  TestServer server;
  Client client(server);
  const ClientResponse response =
      client.post("/v1/completions", R"({"model":"tiny/model","prompt":"hello","max_tokens":5})");
  REQUIRE(response.status == 200);
  CHECK(response.fields.at("content-type") == "application/json");
  CHECK(response.fields.contains("x-request-id"));
  CHECK(response.fields.contains("openai-processing-ms"));
  const json body = response.json();
  CHECK(body["object"] == "text_completion");
  CHECK(body["id"].get<std::string>().starts_with("cmpl-"));
  CHECK(body["model"] == "tiny/model");
  CHECK(body["choices"] ==
        json::parse(R"([{"index":0,"text":"abcde","logprobs":null,"finish_reason":"length",
                                            "stop_reason":null}])"));
  CHECK(body["usage"] == json::parse(R"({"prompt_tokens":1,"completion_tokens":5,"total_tokens":6,
      "prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}})"));
}

TEST_CASE("HttpServer: a joined stream equals the whole answer", "[server]") {
  TestServer server;
  server.executor.set_script(byte_tokens("a \xE6\xBC\xA2\xF0\x9F\xA7\xAA stop here"));
  Client client(server);
  const std::string request =
      R"({"messages":[{"role":"user","content":"x"}],"max_tokens":30,"logprobs":true,"top_logprobs":2,"stop":"p he")";
  const json whole = client.post("/v1/chat/completions", request + "}").json();
  const ClientResponse streamed =
      client.post("/v1/chat/completions",
                  request + R"(,"stream":true,"stream_options":{"include_usage":true}})");
  CHECK(streamed.fields.at("content-type") == "text/event-stream; charset=utf-8");
  CHECK(streamed.fields.at("cache-control") == "no-cache");
  CHECK(!streamed.fields.contains("content-length"));
  const Joined joined = join_chat(streamed.body);
  const json& choice = whole["choices"][0];
  CHECK(choice["message"] == json({{"role", "assistant"},
                                   {"content", "a \xE6\xBC\xA2\xF0\x9F\xA7\xAA sto"},
                                   {"refusal", nullptr}}));
  CHECK(choice["stop_reason"] == "p he");
  CHECK(joined.text == choice["message"]["content"]);
  CHECK(joined.finish_reason == "stop");
  CHECK(joined.finish_reason == choice["finish_reason"]);
  CHECK(joined.logprobs == choice["logprobs"]["content"]);
  CHECK(joined.logprobs.size() == whole["usage"]["completion_tokens"]);
  CHECK(joined.last_usage["completion_tokens"] == whole["usage"]["completion_tokens"]);
  std::string bytes;
  for (const json& entry : joined.logprobs) {
    for (const json& byte : entry["bytes"]) bytes += static_cast<char>(byte.get<int>());
  }
  CHECK(bytes == "a \xE6\xBC\xA2\xF0\x9F\xA7\xAA stop he");
}

TEST_CASE("HttpServer: completions list logprobs with the same decimals in both places",
          "[server]") {
  TestServer server;
  server.executor.set_script({'a', 0xE2, 0x80, 0x99, 'b', kImEnd});
  Client client(server);
  const json body =
      client.post("/v1/completions", R"({"prompt":[1,2],"max_tokens":9,"logprobs":1})").json();
  const json& logprobs = body["choices"][0]["logprobs"];
  CHECK(body["choices"][0]["text"] ==
        "a\xE2\x80\x99"
        "b");
  CHECK(body["choices"][0]["finish_reason"] == "stop");
  CHECK(logprobs["tokens"] ==
        json({"a", "bytes:\\xe2", "bytes:\\x80", "bytes:\\x99", "b", "<|im_end|>"}));
  CHECK(logprobs["token_logprobs"] == json({-0.25, -0.5, -0.75, -1.0, -1.25, -1.5}));
  CHECK(logprobs["text_offset"] == json({0, 1, 1, 1, 2, 3}));
  CHECK(logprobs["top_logprobs"][0] == json({{"a", -0.25}}));
  CHECK(body["usage"]["completion_tokens"] == 6);
}

TEST_CASE("HttpServer: text offsets count the replacements of ill-formed bytes", "[server]") {
  TestServer server;
  Client client(server);
  struct Case {
    std::vector<TokenId> tokens;
    std::string text;
    std::vector<std::uint64_t> offsets;
  };
  const std::string replaced = "\xEF\xBF\xBD";
  const std::vector<Case> cases = {
      // Bytes that only go on with a character, and nothing to go on with: this was 0,0,0,0.
      {{0x80, 0x80, 0x80, 0x80}, replaced + replaced + replaced + replaced, {0, 1, 2, 3}},
      {{'a', 0xBF, 'b', 0xFF, 'c'}, "a" + replaced + "b" + replaced + "c", {0, 1, 2, 3, 4}},
      // A character that is broken off is one replacement, and what breaks it off comes after it.
      {{0xE2, 0x80, 'a', 'b'}, replaced + "ab", {0, 0, 1, 2}},
      {{0xE2, kHello, 0x80, 'x'}, replaced + "hello" + replaced + "x", {0, 1, 6, 7}},
      // A control token adds nothing; a character may go on behind it.
      {{0xC3, kImStart, 0xA9, 'z'}, "\xC3\xA9z", {0, 0, 0, 1}},
  };
  for (const Case& with : cases) {
    server.executor.set_script(with.tokens);
    const std::string request =
        R"({"prompt":"x","logprobs":0,"max_tokens":)" + std::to_string(with.tokens.size());
    const json choice = client.post("/v1/completions", request + "}").json()["choices"][0];
    INFO(choice.dump());
    CHECK(choice["text"] == with.text);
    CHECK(choice["logprobs"]["text_offset"] == json(with.offsets));
    json streamed = json::array();
    const std::string body = client.post("/v1/completions", request + R"(,"stream":true})").body;
    for (const std::string& event : events_of(body)) {
      if (event == "[DONE]") continue;
      const json logprobs = json::parse(event)["choices"][0]["logprobs"];
      if (logprobs.is_null()) continue;
      for (const json& offset : logprobs["text_offset"]) streamed.push_back(offset);
    }
    CHECK(streamed == json(with.offsets));
  }
}

TEST_CASE("HttpServer: several prompts and n number their choices prompt by prompt", "[server]") {
  TestServer server;
  Client client(server);
  const json body =
      client
          .post("/v1/completions",
                R"({"prompt":["x","yy"],"n":2,"max_tokens":2,"return_token_ids":true,"seed":7})")
          .json();
  REQUIRE(body["choices"].size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(body["choices"][i]["index"] == i);
    CHECK(body["choices"][i]["token_ids"] == json({'a', 'b'}));
    CHECK(body["choices"][i]["prompt_token_ids"].size() == (i < 2 ? 1 : 2));
  }
  CHECK(body["usage"]["prompt_tokens"] == 3);
  CHECK(body["usage"]["completion_tokens"] == 8);
  std::vector<std::uint32_t> choice_indices;
  for (const Request& request : server.executor.requests()) {
    CHECK(request.sampling.seed == 7);
    choice_indices.push_back(request.sampling.choice_index);
  }
  CHECK(choice_indices == std::vector<std::uint32_t>{0, 1, 0, 1});
}

TEST_CASE("HttpServer: a host with several addresses is listened on at all of them", "[server]") {
  HttpOptions options;
  options.host = "";  // 0.0.0.0 and ::
  TestServer server(options);
  CHECK(Client(server).get("/livez").status == 200);
  if (const auto response = get_over_ipv6(server.door->port(), "/livez"); response)
    CHECK(response->starts_with("HTTP/1.1 200"));
}

TEST_CASE("HttpServer: a large whole answer is the small one many times", "[server]") {
  TestServer server({}, 256, 64);
  Client client(server);
  const auto answer = [&client](const std::string& n) {
    return client
        .post("/v1/completions",
              R"({"prompt":"x","max_tokens":200,"logprobs":20,"seed":7,"n":)" + n + "}")
        .json();
  };
  const json one = answer("1");  // below the size from which a work thread writes it
  const json many = answer("32");
  REQUIRE(many["choices"].size() == 32);
  for (std::size_t i = 0; i < 32; ++i) {
    json expected = one["choices"][0];
    expected["index"] = i;
    CHECK(many["choices"][i] == expected);
  }
  CHECK(many["usage"]["completion_tokens"] == 32 * 200);
  CHECK(client.get("/livez").status == 200);
}

TEST_CASE("HttpServer: all choices of a streamed chat share one list of prompt ids", "[server]") {
  TestServer server;
  Client client(server);
  const std::string body =
      client
          .post(
              "/v1/chat/completions",
              R"({"messages":[{"role":"user","content":"x"}],"n":3,"max_tokens":2,"return_token_ids":true,"stream":true})")
          .body;
  std::size_t lists = 0;
  for (const std::string& event : events_of(body)) {
    if (event.find("\"prompt_token_ids\":[") != std::string::npos) ++lists;
  }
  CHECK(lists == 1);
  CHECK(json::parse(events_of(body).front()).contains("prompt_token_ids"));
}

TEST_CASE("HttpServer: with return_token_ids every chunk has token_ids, whenever it was made",
          "[server]") {
  TestServer server;
  Client client(server);
  const std::string completion = R"({"prompt":"x")";
  const std::string chat = R"({"messages":[{"role":"user","content":"x"}])";
  struct Case {
    std::string path;
    std::string body;
    std::vector<TokenId> tokens;
  };
  // The last token makes text in one answer and none in the other; both once left the key out at
  // times.
  for (const Case& with : std::vector<Case>{{"/v1/completions", completion, {'a', 'b', 'c'}},
                                            {"/v1/completions", completion, {'a', 'b', kImEnd}},
                                            {"/v1/chat/completions", chat, {'a', 'b', 'c'}},
                                            {"/v1/chat/completions", chat, {'a', 'b', kImEnd}}}) {
    INFO(with.path << " " << with.tokens.back());
    server.executor.set_script(with.tokens);
    const std::string request =
        with.body + R"(,"max_tokens":3,"return_token_ids":true,"stream":true)";
    std::vector<TokenId> joined;
    const std::string answer =
        client.post(with.path, request + R"(,"stream_options":{"include_usage":true}})").body;
    for (const std::string& event : events_of(answer)) {
      if (event == "[DONE]") continue;
      const json chunk = json::parse(event);
      for (const json& choice : chunk["choices"]) {
        REQUIRE(choice.contains("token_ids"));
        for (const json& id : choice["token_ids"]) joined.push_back(id.get<TokenId>());
      }
    }
    CHECK(joined == with.tokens);
  }
  const std::string without =
      client.post("/v1/completions", completion + R"(,"max_tokens":3,"stream":true})").body;
  CHECK(without.find("token_ids") == std::string::npos);
}

TEST_CASE("HttpServer: a connection serves request after request, streams and pipelined ones too",
          "[server]") {
  TestServer server;
  Client client(server);
  const std::string completion = R"({"prompt":"x","max_tokens":3})";
  const std::string stream = R"({"prompt":"x","max_tokens":3,"stream":true})";
  client.send(post_bytes("/v1/completions", completion) + post_bytes("/v1/completions", stream) +
              "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" + post_bytes("/v1/completions", completion));
  CHECK(client.read_response().json()["choices"][0]["text"] == "abc");
  CHECK(events_of(client.read_response().body).back() == "[DONE]");
  CHECK(client.read_response().json()["status"] == "ok");
  CHECK(client.read_response().json()["choices"][0]["text"] == "abc");
  CHECK(eventually([&] { return server.door->live_requests() == 0; }));
}

TEST_CASE("HttpServer: HTTP/1.0 gets a stream that ends with the connection", "[server]") {
  TestServer server;
  Client client(server);
  const std::string body = R"({"prompt":"x","max_tokens":3,"stream":true})";
  client.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  const ClientResponse response = client.read_response();
  CHECK(!response.fields.contains("transfer-encoding"));
  CHECK(response.fields.at("connection") == "close");
  CHECK(events_of(response.body).back() == "[DONE]");
}

TEST_CASE(
    "HttpServer: a stream that waits long gets its 200 and comments, and an error as an event",
    "[server]") {
  HttpOptions options;
  options.ping_interval = std::chrono::milliseconds(20);
  TestServer server(options);
  server.executor.close_gate();
  Client client(server);
  client.send(post_bytes("/v1/completions", R"({"prompt":"x","max_tokens":3,"stream":true})"));
  CHECK(client.read_head().status == 200);
  CHECK(client.read_chunk() == ": ping\n\n");
  CHECK(client.read_chunk() == ": ping\n\n");
  server.engine->stop();
  server.executor.open_gate();
  std::string rest;
  for (std::string chunk = client.read_chunk(); !chunk.empty(); chunk = client.read_chunk())
    rest += chunk;
  const std::vector<std::string> events = events_of(rest);
  REQUIRE(!events.empty());
  CHECK(json::parse(events.back())["error"]["code"] == "draining");
  CHECK(client.at_end());
}

TEST_CASE("HttpServer: models, health, version, metrics and status", "[server]") {
  TestServer server;
  Client client(server);
  const json models = client.get("/v1/models").json();
  CHECK(models["data"][0]["id"] == "tiny/model");
  CHECK(models["data"][0]["max_model_len"] == kTinyContext);
  CHECK(client.get("/v1/models/tiny%2Fmodel").json()["id"] == "tiny/model");
  CHECK(client.get("/v1/models/tiny/model").json()["id"] == "tiny/model");
  CHECK(client.get("/v1/models/alias?x=1").json()["id"] == "alias");
  CHECK(client.get("/v1/models/other").error_code() == "model_not_found");
  CHECK(client.get("/health").status == 200);
  CHECK(client.get("/v2/health/live").status == 200);
  CHECK(client.get("/v2/health/ready").status == 200);
  CHECK(client.get("/v2/models/tiny%2Fmodel/ready").json()["ready"] == true);
  CHECK(client.get("/v2/models/other/ready").error_code() == "model_not_found");
  CHECK(client.get("/v2/models//ready").error_code() == "unknown_url");
  CHECK(client.get("/readyz").status == 200);
  CHECK(client.get("/version").json().contains("commit"));
  CHECK(client.get("/v1/kv/status").json()["live_blocks"] == 0);
  client.send("HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n");
  const ClientResponse head = client.read_response(true);
  CHECK(head.status == 200);
  CHECK(head.fields.at("content-length") == "15");
  client.post("/v1/completions", R"({"prompt":"x","max_tokens":3,"vendor_extra":1})");
  // The engine publishes its counters at the end of the step, a moment after the last token went
  // out.
  CHECK(eventually([&] { return server.engine->status().finished_length_total == 1; }));
  const ClientResponse metrics = client.get("/metrics");
  CHECK(metrics.fields.at("content-type") == "text/plain; version=0.0.4; charset=utf-8");
  CHECK(metrics.body.find("kvasir_ignored_fields_total 1\n") != std::string::npos);
  CHECK(
      metrics.body.find(
          R"(kvasir_requests_total{engine="0",model_name="tiny/model",cause="",finish_reason="length"} 1)") !=
      std::string::npos);
  CHECK(metrics.body.find(
            R"(http_requests_total{handler="/v1/models/{id}",method="GET",status="2xx"} 3)") !=
        std::string::npos);
  server.service->set_readiness(Readiness::kDraining);
  const ClientResponse draining = client.get("/readyz");
  CHECK(draining.status == 503);
  CHECK(draining.fields.at("retry-after") == "5");
  CHECK(draining.fields.at("connection") == "close");
}

TEST_CASE("HttpServer: tokenize and detokenize go there and back", "[server]") {
  TestServer server;
  Client client(server);
  const json tokens = client.post("/tokenize", R"({"prompt":"hello <|im_end|>"})").json();
  CHECK(tokens["tokens"][0] == kHello);
  CHECK(tokens["count"] == tokens["tokens"].size());
  CHECK(tokens["max_model_len"] == kTinyContext);
  for (const json& token : tokens["tokens"]) CHECK(token != kImEnd);
  CHECK(client.post("/detokenize", json{{"tokens", tokens["tokens"]}}.dump()).json()["prompt"] ==
        "hello <|im_end|>");
  const json chat =
      client.post("/tokenize", R"({"messages":[{"role":"user","content":"hello"}]})").json();
  CHECK(chat["tokens"].front() == kImStart);
  CHECK(client.post("/tokenize", "{}").error_code() == "missing_required_parameter");
  CHECK(client.post("/detokenize", R"({"tokens":[300]})").error_param() == "tokens[0]");
}

TEST_CASE("HttpServer: the client's request id comes back if it is one", "[server]") {
  TestServer server;
  Client client(server);
  client.send("GET /livez HTTP/1.1\r\nHost: x\r\nX-Request-Id: my-id:1\r\n\r\n");
  CHECK(client.read_response().fields.at("x-request-id") == "my-id:1");
  client.send("GET /livez HTTP/1.1\r\nHost: x\r\nX-Request-Id: \"}<b>\r\n\r\n");
  CHECK(client.read_response().fields.at("x-request-id").starts_with("req-"));
}
