// Where one request ends and the next begins: what two readers of the same bytes could see
// differently is refused, and what is allowed is read to its last byte.
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;
using nlohmann::json;

namespace {

const std::string kFollower = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
const std::string kTokenize = R"({"prompt":"x"})";  // 14 bytes

/// One answer, then the end: what follows is never run.
void check_closed(const TestServer& server, const std::string& bytes, int status) {
  INFO(bytes.substr(0, 300));
  Client client(server);
  client.send(bytes + kFollower);
  const ClientResponse response = client.read_response();
  CHECK(response.status == status);
  CHECK(response.fields.at("connection") == "close");
  CHECK(response.json()["error"].size() == 4);
  CHECK(client.at_end());
}

/// An answer, and then that of the request behind it.
void check_goes_on(const TestServer& server, const std::string& bytes, int status) {
  INFO(bytes.substr(0, 300));
  Client client(server);
  client.send(bytes + "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(client.read_response().status == status);
  CHECK(client.read_response().json()["status"] == "ok");
}

std::string chunked(const std::string& body) {
  return "POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body;
}

std::string with_fields(const std::string& fields) {
  return "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n" + fields + "\r\n" +
         kTokenize;
}

}  // namespace

TEST_CASE("HttpServer: exactly one Host, of the characters of one", "[server]") {
  TestServer server;
  for (const char* hosts : {"", "Host: a\r\nHost: a\r\n", "Host: a b\r\n", "Host: a/b\r\n",
                            "Host: a@b\r\n", "Host: \"a\"\r\n", "Host: a\\b\r\n",
                            "Host: a,b\r\nHost: c\r\n", " Host: a\r\n", "Host\t: a\r\n"}) {
    check_closed(server, "GET /livez HTTP/1.1\r\n" + std::string(hosts) + "\r\n", 400);
  }
  for (const char* host : {"a", "a.test:8080", "[::1]:80", "", "127.0.0.1", "a_b-c~d"})
    check_goes_on(server, "GET /livez HTTP/1.1\r\nHost: " + std::string(host) + "\r\n\r\n", 200);
  check_closed(server, "GET /livez HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400);
}

TEST_CASE("HttpServer: lines end with both of their bytes", "[server]") {
  TestServer server;
  for (const char* bytes :
       {"GET /livez HTTP/1.1\nHost: x\n\n", "GET /livez HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost: x\r\nA: b\n\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost: x\r\nA: b\r\n\tc\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost: x\r\nA\r\n\r\n", "GET  /livez HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /livez  HTTP/1.1\r\nHost: x\r\n\r\n", "GET /livez\tHTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /liv\x80z HTTP/1.1\r\nHost: x\r\n\r\n", "G@T /livez HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /livez http/1.1\r\nHost: x\r\n\r\n"}) {
    check_closed(server, bytes, 400);
  }
  // At once: such a header would never end.
  HttpOptions patient;
  patient.header_timeout = std::chrono::hours(1);
  TestServer waits(patient);
  Client client(waits);
  client.send("GET /livez HTTP/1.1\nHost: x\n\n");
  CHECK(client.read_response().status == 400);
  // Line feeds of a body are the body's.
  const std::string body = "{\n\"prompt\":\n\"x\"\n}";
  check_goes_on(server, post_bytes("/tokenize", body), 200);
}

TEST_CASE("HttpServer: header fields are counted up to the operator's limit", "[server]") {
  TestServer server({.max_header_fields = 5});
  const auto with = [](int fields) {
    std::string bytes = "GET /livez HTTP/1.1\r\nHost: x\r\n";
    for (int i = 1; i < fields; ++i) bytes += "A: b\r\n";
    return bytes + "\r\n";
  };
  check_goes_on(server, with(5), 200);
  check_closed(server, with(6), 431);
}

TEST_CASE("HttpServer: limits of the header and the URI are the operator's", "[server]") {
  TestServer server({.max_header_bytes = 500, .max_uri_bytes = 100});
  check_goes_on(server, "GET /" + std::string(99, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n", 404);
  check_closed(server, "GET /" + std::string(100, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n", 414);
  const std::string line = "GET /livez HTTP/1.1\r\nHost: x\r\nA: ";
  check_goes_on(server, line + std::string(500 - line.size(), 'a') + "\r\n\r\n", 200);
  check_closed(server, line + std::string(501 - line.size(), 'a') + "\r\n\r\n", 431);
}

TEST_CASE("HttpServer: chunks are read to their last byte, extensions and trailers ignored",
          "[server]") {
  TestServer server;
  for (const char* body :
       {"e\r\n{\"prompt\":\"x\"}\r\n0\r\n\r\n", "E\r\n{\"prompt\":\"x\"}\r\n000\r\n\r\n",
        "000000000000000000000e\r\n{\"prompt\":\"x\"}\r\n0\r\n\r\n",
        "7\r\n{\"promp\r\n7\r\nt\":\"x\"}\r\n0\r\n\r\n",
        "e;a=b;c=\"d e\"\r\n{\"prompt\":\"x\"}\r\n0;z\r\n\r\n",
        "e\r\n{\"prompt\":\"x\"}\r\n0\r\nA: b\r\nHost: y\r\n\r\n"}) {
    check_goes_on(server, chunked(body), 200);
  }
  for (const char* body :
       {"e \r\n{\"prompt\":\"x\"}\r\n0\r\n\r\n", "0xe\r\n{\"prompt\":\"x\"}\r\n0\r\n\r\n",
        "+e\r\n{\"prompt\":\"x\"}\r\n0\r\n\r\n", "-e\r\n{\"prompt\":\"x\"}\r\n0\r\n\r\n",
        "e\n{\"prompt\":\"x\"}\r\n0\r\n\r\n", "e;\nx\r\n{\"prompt\":\"x\"}\r\n0\r\n\r\n",
        "e\r\n{\"prompt\":\"x\"}0\r\n\r\n", "d\r\n{\"prompt\":\"x\"}\r\n0\r\n\r\n", "\r\n0\r\n\r\n",
        "1000000000000000e\r\n{\"prompt\":\"x\"}\r\n0\r\n\r\n",
        "e\r\n{\"prompt\":\"x\"}\r\n0\r\nbad\r\n\r\n",
        "e\r\n{\"prompt\":\"x\"}\r\n0\r\nContent-Length: 3\r\n\r\n",
        "e\r\n{\"prompt\":\"x\"}\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"}) {
    check_closed(server, chunked(body), 400);
  }
  check_closed(server, chunked("FFFFFFFFFFFFFFFF\r\n"), 413);
  check_closed(server, chunked("7FFFFFFFFFFFFFFF\r\n"), 413);
}

TEST_CASE("HttpServer: chunk extensions and trailers are bounded", "[server]") {
  TestServer server;
  std::string extensions;
  for (int i = 0; i < 200; ++i) extensions += "1;a=" + std::string(100, 'b') + "\r\n{\r\n";
  check_closed(server, chunked(extensions), 431);
  check_closed(server, chunked("1;a=" + std::string(64U << 10U, 'b')), 400);
  std::string trailers = "e\r\n" + kTokenize + "\r\n0\r\n";
  for (int i = 0; i < 400; ++i) trailers += "A: " + std::string(100, 'b') + "\r\n";
  check_closed(server, chunked(trailers), 400);
}

TEST_CASE("HttpServer: expectations are met or refused", "[server]") {
  TestServer server;
  check_closed(server, with_fields("Expect: magic\r\n"), 417);
  check_closed(server, with_fields("Expect: magic\r\nExpect: 100-continue\r\n"), 417);
  check_closed(server, with_fields("Expect: 100-continue, magic\r\n"), 417);
  check_closed(server, with_fields("Expect:\r\n"), 417);
  // With the body there already no 100 is needed; in HTTP/1.0 there is none.
  check_goes_on(server, with_fields("Expect: 100-Continue\r\n"), 200);
  Client client(server);
  client.send("POST /tokenize HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n");
  client.send(kTokenize);
  CHECK(client.read_response().status == 200);
  // Nor where the answer is known without the body.
  Client refused(server);
  refused.send(
      "POST /nothing HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n");
  CHECK(refused.read_response().status == 404);
}

TEST_CASE("HttpServer: bodies are JSON in UTF-8, whatever else their type says", "[server]") {
  TestServer server;
  for (const char* fields :
       {"", "Content-Type: application/json\r\n", "content-type: Application/JSON\r\n",
        "Content-Type: application/json; charset=utf-8\r\n",
        "Content-Type: application/json;charset=\"UTF-8\"\r\n",
        "Content-Type: application/json; boundary=x; q\r\n", "Content-Encoding: identity\r\n",
        "Content-Encoding: Identity\r\n"}) {
    check_goes_on(server, with_fields(fields), 200);
  }
  for (const char* fields :
       {"Content-Type: text/plain\r\n", "Content-Type: application/jsonx\r\n",
        "Content-Type: application/json, text/plain\r\n", "Content-Type: json\r\n",
        "Content-Type: application/json; charset=utf-16\r\n",
        "Content-Type: application/json; a=b; charset=latin1\r\n",
        "Content-Type: application/json\r\nContent-Type: text/plain\r\n",
        "Content-Type: multipart/form-data; boundary=application/json\r\n",
        "Content-Encoding: gzip\r\n", "Content-Encoding: br\r\n",
        "Content-Encoding: identity, gzip\r\n",
        "Content-Encoding: gzip\r\nContent-Encoding: identity\r\n"}) {
    check_goes_on(server, with_fields(fields), 415);
  }
  check_goes_on(server, post_bytes("/tokenize", "\xEF\xBB\xBF" + kTokenize), 200);
  check_goes_on(server, post_bytes("/tokenize", "\xEF\xBB\xBF\xEF\xBB\xBF" + kTokenize), 400);
  check_goes_on(server, post_bytes("/tokenize", std::string("\xFF\xFE{\0}\0", 6)), 400);
}

TEST_CASE("HttpServer: targets are taken as they are", "[server]") {
  TestServer server;
  const auto get = [&server](const std::string& target) {
    Client client(server);
    return client.get(target);
  };
  CHECK(get("http://any.test/livez").status == 200);
  CHECK(get("HTTPS://any.test:1/livez?x").status == 200);
  for (const char* target :
       {"/v1/../metrics", "/v1//models", "//livez", "/livez/", "/%6civez", "/livez%00", "/%00",
        "/livez;x", "/livez#x", "*", "any.test:80", "http://any.test", "http://any.test?/livez",
        "ftp://any.test/livez", "livez", "/v1/models/%", "/v1/models/%zz", "/v1/models/%ff",
        "/V1/models"}) {
    INFO(target);
    const ClientResponse response = get(target);
    CHECK(response.status == 404);
    CHECK(response.error_code() == "unknown_url");
  }
  CHECK(get("/v1/models/tiny/model").json()["id"] == "tiny/model");
  CHECK(get("/v1/models/tiny%2fmodel").json()["id"] == "tiny/model");
  CHECK(get("/v1/models/tiny%2Fmodel?a=/b").json()["id"] == "tiny/model");
  CHECK(get("/v1/models/tiny/model/").error_code() == "model_not_found");
}

TEST_CASE("HttpServer: other versions and protocols", "[server]") {
  TestServer server;
  for (const char* version : {"HTTP/1.2", "HTTP/2.0", "HTTP/0.9", "HTTP/3.0"})
    check_closed(server, "GET /livez " + std::string(version) + "\r\nHost: x\r\n\r\n", 505);
  check_closed(server, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400);
  check_closed(server, std::string("\x16\x03\x01\x00\xee\x01\x00\x00\xea\x03\x03", 11), 400);
  // An offer to change the protocol is not taken up.
  check_goes_on(server,
                "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n"
                "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
                200);
  for (const char* method : {"PUT", "DELETE", "PATCH", "TRACE", "MADEUP"}) {
    Client client(server);
    client.send(std::string(method) + " /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
    const ClientResponse response = client.read_response();
    CHECK(response.status == 405);
    CHECK(response.fields.at("allow") == "GET, HEAD");
  }
}

TEST_CASE("HttpServer: a connection is kept or closed as both sides say", "[server]") {
  TestServer server;
  const auto closes = [&server](const std::string& version, const std::string& fields) {
    Client client(server);
    client.send("GET /livez HTTP/" + version + "\r\nHost: x\r\n" + fields + "\r\n" +
                "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
    const ClientResponse first = client.read_response();
    CHECK(first.status == 200);
    const bool says_close =
        first.fields.contains("connection") && first.fields.at("connection") == "close";
    if (says_close) {
      CHECK(client.at_end());
    } else {
      CHECK(client.read_response().status == 200);
    }
    return says_close;
  };
  CHECK(!closes("1.1", ""));
  CHECK(!closes("1.1", "Connection: keep-alive\r\n"));
  CHECK(closes("1.1", "Connection: close\r\n"));
  CHECK(closes("1.1", "Connection: x, Close\r\n"));
  CHECK(closes("1.1", "Connection: close, x\r\nConnection: keep-alive\r\n"));
  CHECK(closes("1.1", "Connection: keep-alive\r\nConnection: close\r\n"));
  CHECK(closes("1.0", ""));
  CHECK(!closes("1.0", "Connection: Keep-Alive\r\n"));
}

// Requests sent ahead are answered one after the other; each keeps its own fields.
TEST_CASE("HttpServer: pipelined requests are answered in their order", "[server]") {
  TestServer server;
  Client client(server);
  std::string bytes;
  for (int i = 0; i < 50; ++i) {
    bytes += "POST /tokenize HTTP/1.1\r\nHost: x\r\nX-Request-Id: id-" + std::to_string(i) +
             "\r\nContent-Length: 14\r\n\r\n" + kTokenize;
    bytes +=
        "GET /nothing HTTP/1.1\r\nHost: x\r\nX-Request-Id: no-" + std::to_string(i) + "\r\n\r\n";
  }
  for (std::size_t at = 0; at < bytes.size(); at += 997) client.send(bytes.substr(at, 997));
  for (int i = 0; i < 50; ++i) {
    const ClientResponse first = client.read_response();
    CHECK(first.status == 200);
    CHECK(first.fields.at("x-request-id") == "id-" + std::to_string(i));
    const ClientResponse second = client.read_response();
    CHECK(second.status == 404);
    CHECK(second.fields.at("x-request-id") == "no-" + std::to_string(i));
  }
}
