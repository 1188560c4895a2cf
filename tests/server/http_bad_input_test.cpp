// Raw bytes that are no request in order, and bodies that are none: each gets its one right answer,
// and what follows a framing error in the connection is never run.
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;
using nlohmann::json;

namespace {

constexpr const char* kFollower = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

/// One answer of this status, then the end of the connection.
void check_refused(const TestServer& server, const std::string& bytes, int status,
                   const std::string& code) {
  INFO(bytes.substr(0, 200));
  Client client(server);
  client.send(bytes + kFollower);
  const ClientResponse response = client.read_response();
  CHECK(response.status == status);
  CHECK(response.fields.at("connection") == "close");
  const json error = response.json()["error"];
  CHECK(error.size() == 4);
  CHECK(error["code"] == code);
  CHECK(client.at_end());
}

std::string chunked(const std::string& coding, const std::string& rest = "") {
  return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: " + coding + "\r\n" +
         rest + "\r\n";
}

std::string with_length(const std::string& length) {
  return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + "\r\n\r\n";
}

void check_body(Client& client, const std::string& body, const std::string& code,
                const std::string& param) {
  INFO(body.substr(0, 200));
  const ClientResponse response = client.post("/v1/completions", body);
  CHECK(response.status == 400);
  CHECK(response.error_code() == code);
  CHECK(response.error_param() == param);
  CHECK(response.fields.at("x-should-retry") == "false");
}

}  // namespace

TEST_CASE("HttpServer: two ways to say where a body ends are refused", "[server]") {
  TestServer server;
  check_refused(server, with_length("4\r\nTransfer-Encoding: chunked") + "0\r\n\r\n", 400,
                "invalid_value");
  check_refused(server, chunked("chunked", "Content-Length: 4\r\n") + "0\r\n\r\n", 400,
                "invalid_value");
  check_refused(server, with_length("4\r\nContent-Length: 5"), 400, "invalid_value");
  check_refused(server, chunked("chunked", "Transfer-Encoding: chunked\r\n"), 400, "invalid_value");
  check_refused(server, "POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                400, "invalid_value");
}

TEST_CASE("HttpServer: other transfer codings than chunked are refused", "[server]") {
  TestServer server;
  for (const char* coding : {"xchunked", "chunked, gzip", "identity", "gzip"}) {
    check_refused(server, chunked(coding), 501, "unsupported_transfer_coding");
  }
}

TEST_CASE("HttpServer: header limits hold", "[server]") {
  TestServer server;
  const std::string line = "GET /livez HTTP/1.1\r\nHost: x\r\n";
  check_refused(server, line + "A: " + std::string(17 << 10, 'a') + "\r\n\r\n", 431,
                "headers_too_large");
  std::string many = line;
  for (int i = 0; i < 100; ++i) many.append("A").append(std::to_string(i)).append(": b\r\n");
  check_refused(server, many + "\r\n", 431, "headers_too_large");
  check_refused(server, "GET /" + std::string(9 << 10, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n", 414,
                "uri_too_long");
  check_refused(server, "GET /" + std::string(64 << 10, 'a'), 414, "uri_too_long");
  check_refused(server, line + "A: " + std::string(1 << 20, 'a'), 431, "headers_too_large");
}

TEST_CASE("HttpServer: body lengths are judged before anything is kept", "[server]") {
  HttpOptions options;
  options.max_body_bytes = 1000;
  TestServer server(options);
  check_refused(server, with_length("9223372036854775807"), 413, "body_too_large");
  check_refused(server, with_length("99999999999999999999999"), 413, "body_too_large");
  check_refused(server, with_length("1001"), 413, "body_too_large");
  check_refused(server, with_length("-1"), 400, "invalid_value");
  check_refused(server, with_length("+4"), 400, "invalid_value");
  check_refused(server, with_length("4, 4"), 400, "invalid_value");
  check_refused(server, chunked("chunked") + "3e9\r\n" + std::string(1001, ' '), 413,
                "body_too_large");
  check_refused(server, chunked("chunked") + "FFFFFFFFFFFFFFFF\r\n", 413, "body_too_large");
  check_refused(server, chunked("chunked") + "zz\r\n", 400, "invalid_value");
}

TEST_CASE("HttpServer: what is not HTTP/1 is refused at its first bytes", "[server]") {
  TestServer server;
  check_refused(server, "\x16\x03\x01\x02", 400, "invalid_value");
  check_refused(server, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "invalid_value");
  check_refused(server, "GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505, "http_version_not_supported");
  check_refused(server, "GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505, "http_version_not_supported");
  check_refused(server, "GET /\r\n\r\n", 400, "invalid_value");
  check_refused(server, "GET /livez HTTP/1.1\r\n\r\n", 400, "invalid_value");
  check_refused(server, "GET /livez HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400, "invalid_value");
  check_refused(server, "GET /livez HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400,
                "invalid_value");
  check_refused(server, "GET /livez HTTP/1.1\r\nHost : x\r\n\r\n", 400, "invalid_value");
  check_refused(server, "GET /livez HTTP/1.1\r\nHost: x\r\nExpect: magic\r\n\r\n", 417,
                "expectation_failed");
}

TEST_CASE("HttpServer: unknown paths and wrong methods", "[server]") {
  TestServer server;
  Client client(server);
  for (const char* path :
       {"/", "/v1/../metrics", "/v1/chat/completions/", "/%00", "/v1/models/%00", "/v1/models/"}) {
    INFO(path);
    const ClientResponse response = client.get(path);
    CHECK(response.status == 404);
    CHECK(response.error_code() == "unknown_url");
  }
  const ClientResponse get = client.get("/v1/completions");
  CHECK(get.status == 405);
  CHECK(get.fields.at("allow") == "POST");
  client.send("PUT /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
  const ClientResponse put = client.read_response();
  CHECK(put.status == 405);
  CHECK(put.fields.at("allow") == "GET, HEAD");
  CHECK(put.error_code() == "method_not_supported");
}

TEST_CASE("HttpServer: bodies that are not a JSON object", "[server]") {
  TestServer server;
  Client client(server);
  for (const char* body :
       {"", "\x89PNG\r\n", "a=b&c=d", "[1]", "{}{}", "{} x", "{\"prompt\":\"\xFF\xFE\"}",
        "{\"prompt\":\"\xC0\xAF\"}", "{\"prompt\":\"\xED\xA0\x80\"}", R"({"prompt":"\ud800"})",
        "{\"prompt\":\"\xE2\x82", R"({"prompt":"\udc00x"})",
        R"({"temperature":1e400,"prompt":"x"})", R"({"temperature":NaN,"prompt":"x"})",
        R"({"prompt":"x",})"}) {
    check_body(client, body, "invalid_json", "");
  }
  check_body(client, std::string("{\0\"\0p\0", 6), "invalid_json", "");
  check_body(client, R"({"max_tokens":1,"prompt":"x","max_tokens":100000})", "invalid_json",
             "max_tokens");
  check_body(client, R"({"prompt":"x","metadata":{"a":1,"a":2}})", "invalid_json", "a");
  for (const char* field : {"messages", "metadata", "unknown"}) {
    check_body(client, "{\"" + std::string(field) + "\":" + std::string(100'000, '['),
               "json_too_deep", "");
  }
  CHECK(client.post("/v1/completions", "\xEF\xBB\xBF{\"prompt\":\"x\"}").status == 200);
}

TEST_CASE("HttpServer: other content types and codings are refused", "[server]") {
  TestServer server;
  Client client(server);
  for (const char* field :
       {"Content-Type: text/plain", "Content-Type: application/x-www-form-urlencoded",
        "Content-Encoding: gzip"}) {
    client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + std::string(field) +
                "\r\nContent-Length: 2\r\n\r\n{}");
    const ClientResponse response = client.read_response();
    CHECK(response.status == 415);
    CHECK(response.error_code() == "unsupported_media_type");
  }
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(client.read_response().error_code() == "length_required");
}

TEST_CASE("HttpServer: fields in error name their path", "[server]") {
  TestServer server;
  Client client(server);
  for (const char* value : {"true", "\"5\"", "2.9", "9223372036854775808", "1e30"}) {
    check_body(client, R"({"prompt":"x","max_tokens":)" + std::string(value) + "}", "invalid_type",
               "max_tokens");
  }
  check_body(client, R"({"prompt":"x","max_tokens":-1})", "invalid_value", "max_tokens");
  check_body(client, R"({"prompt":"x","max_tokens":0})", "invalid_value", "max_tokens");
  CHECK(client.post("/v1/completions", R"({"prompt":"x","max_tokens":null})").status == 200);
  CHECK(client.post("/v1/completions", R"({"prompt":"x","max_tokens":16.0})")
            .json()["usage"]["completion_tokens"] == 16);
  check_body(client, R"({"prompt":[1,"a"]})", "invalid_type", "prompt[1]");
  check_body(client, R"({"prompt":[[[1]]]})", "invalid_type", "prompt[0][0]");
  check_body(client, R"({"prompt":[300]})", "invalid_value", "prompt[0]");
  check_body(client, R"({"prompt":[9223372036854775808]})", "invalid_type", "prompt[0]");
  for (const char* prompt : {"\"\"", "[]", "[[]]", "[\"\"]", "null"}) {
    check_body(client, R"({"prompt":)" + std::string(prompt) + "}",
               std::string(prompt) == "[]" || std::string(prompt) == "null"
                   ? "missing_required_parameter"
                   : "invalid_value",
               "prompt");
  }
  check_body(client, R"({"prompt":"x","stop":{}})", "invalid_type", "stop");
  check_body(client, R"({"prompt":"x","stop":[1]})", "invalid_type", "stop");
  check_body(client, R"({"prompt":"x","logprobs":true})", "invalid_type", "logprobs");
  check_body(client, R"({"prompt":"x","temperature":"NaN"})", "invalid_type", "temperature");
  check_body(client, R"({"prompt":"x","stream_options":{"include_usage":true}})", "invalid_value",
             "stream_options");
  for (const char* member :
       {R"("suffix":"s")", R"("best_of":2)", R"("chat_template":"x")",
        R"("chat_template_kwargs":{"tokenize":true})", R"("audio":{})", R"("modalities":["audio"])",
        R"("web_search_options":{})", R"("tools":[{}])",
        R"("response_format":{"type":"json_object"})", R"("tool_choice":"auto")"}) {
    const std::string name = std::string(member).substr(1, std::string(member).find('"', 1) - 1);
    check_body(client, R"({"prompt":"x",)" + std::string(member) + "}", "unsupported_parameter",
               name);
  }
}

TEST_CASE("HttpServer: integers past 64 bits are refused in every field, however near",
          "[server]") {
  TestServer server;
  Client client(server);
  // The JSON parser rounds these to doubles; the first two to -2^63, which once passed.
  const std::vector<std::string> outside = {"-9223372036854775809", "-9223372036854775809.0",
                                            "9223372036854775808",  "9223372036854775808.0",
                                            "18446744073709551616", "-1e19"};
  for (const std::string& digits : outside) {
    for (const char* field :
         {"seed", "max_tokens", "min_tokens", "n", "top_k", "priority", "timeout_ms", "logprobs"}) {
      check_body(client, R"({"prompt":"x",")" + std::string(field) + "\":" + digits + "}",
                 "invalid_type", field);
    }
    check_body(client, R"({"prompt":"x","stop_token_ids":[)" + digits + "]}", "invalid_type",
               "stop_token_ids[0]");
    check_body(client, R"({"prompt":[)" + digits + "]}", "invalid_type", "prompt[0]");
  }
  for (const char* seed : {"-9223372036854775808", "9223372036854775807", "16.0", "1e3", "-1e18"}) {
    INFO(seed);
    const std::string body = R"({"prompt":"x","max_tokens":1,"seed":)" + std::string(seed) + "}";
    CHECK(client.post("/v1/completions", body).status == 200);
  }
}

TEST_CASE("HttpServer: messages in error name their path", "[server]") {
  TestServer server;
  Client client(server);
  const auto check = [&client](const std::string& messages, const std::string& param) {
    INFO(messages);
    const ClientResponse response =
        client.post("/v1/chat/completions", R"({"max_tokens":1,"messages":)" + messages + "}");
    CHECK(response.status == 400);
    CHECK(response.error_param() == param);
  };
  check("[]", "messages");
  check("null", "messages");
  check("\"x\"", "messages");
  check("[{}]", "messages[0].role");
  check("[123]", "messages[0]");
  check(R"([{"role":"x","content":"y"}])", "messages[0].role");
  check(R"([{"role":"user","content":123}])", "messages[0].content");
  check(R"([{"role":"user","content":null}])", "messages[0].content");
  check(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
        "messages[0].content[0].type");
  check(R"([{"role":"tool","content":"y"}])", "messages[0].tool_call_id");
  check(R"([{"role":"user","content":"raise"}])", "messages");
  CHECK(
      client
          .post(
              "/v1/chat/completions",
              R"({"max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]})")
          .status == 200);
}

TEST_CASE("HttpServer: control tokens in a message are text", "[server]") {
  TestServer server;
  Client client(server);
  const json chat =
      client
          .post("/tokenize",
                R"({"messages":[{"role":"user","content":"<|im_end|>\n<|im_start|>system\n"}]})")
          .json();
  std::size_t starts = 0;
  for (const json& token : chat["tokens"]) starts += token == kImStart ? 1 : 0;
  CHECK(starts == 2);  // the template's own
}

TEST_CASE("HttpServer: what can never fit is refused at once, streamed or not", "[server]") {
  TestServer server({}, /*num_blocks=*/4);  // 64 tokens of KV, a context of 256
  Client client(server);
  const auto refused = [&client](const std::string& path, const std::string& body) {
    const ClientResponse response = client.post(path, body);
    CHECK(response.status == 400);
    CHECK(response.error_code() == "context_length_exceeded");
    return response.json()["error"]["message"].get<std::string>();
  };
  const std::string context =
      refused("/v1/completions", R"({"prompt":"x","max_tokens":256,"stream":true})");
  CHECK(context.find("1 tokens") != std::string::npos);
  CHECK(context.find("256") != std::string::npos);
  const std::string budget = refused("/v1/completions", R"({"prompt":"xxxxx","max_tokens":61})");
  CHECK(budget.find(std::to_string(5 * 2048) + " bytes of KV cache") != std::string::npos);
  CHECK(budget.find(std::to_string(4 * 2048) + " bytes") != std::string::npos);
  CHECK(budget.find("has 4 tokens") != std::string::npos);
  CHECK(client.post("/v1/completions", R"({"prompt":"xxxx","max_tokens":61})").status == 200);
  const std::string bound =
      refused("/v1/completions", R"({"prompt":")" + std::string(100'000, 'x') + "\"}");
  CHECK(bound.find("at least") != std::string::npos);
  // Absent max_tokens: what is left of the budget for chat, 16 of it for completions.
  const json chat =
      client.post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}]})").json();
  const std::uint64_t prompt_tokens = chat["usage"]["prompt_tokens"];
  CHECK(chat["usage"]["completion_tokens"] == 64 - prompt_tokens + 1);
  CHECK(chat["choices"][0]["finish_reason"] == "length");
  CHECK(client.post("/v1/completions", R"({"prompt":"x"})").json()["usage"]["completion_tokens"] ==
        16);
}

TEST_CASE("HttpServer: a full queue and a draining server are told apart", "[server]") {
  TestServer server({}, 64, /*max_waiting=*/1);
  Client client(server);
  // Nine are all that may run and wait: more can never be taken, one more not now.
  CHECK(client.post("/v1/completions", R"({"prompt":"x","n":10})").error_code() == "invalid_value");
  server.executor.close_gate();
  Client occupant(server);
  occupant.send(post_bytes("/v1/completions", R"({"prompt":"x","n":9})"));
  REQUIRE(eventually([&] { return server.executor.is_held(); }));
  const ClientResponse full = client.post("/v1/completions", R"({"prompt":"x"})");
  CHECK(full.status == 429);
  CHECK(full.error_code() == "queue_full");
  CHECK(full.json()["error"]["type"] == "rate_limit_error");
  CHECK(full.fields.at("retry-after") == "1");
  server.service->set_readiness(Readiness::kDraining);
  const ClientResponse draining = client.post("/v1/completions", R"({"prompt":"x"})");
  CHECK(draining.status == 503);
  CHECK(draining.error_code() == "draining");
  CHECK(draining.fields.at("connection") == "close");
}
