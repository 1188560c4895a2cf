// Clients that leave, do not read or do not finish: their work ends at once and nothing of it
// stays.
#include "server/http/request_reader.h"
#include "tests/server/failing_memory.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;

namespace {

const std::string kWhole = R"({"prompt":"hello","max_tokens":200})";
const std::string kStream = R"({"prompt":"hello","max_tokens":200,"stream":true})";

std::uint64_t cancelled(const TestServer& server, CancelCause cause) {
  return server.engine->status().cancelled_total.at(static_cast<std::size_t>(cause));
}

/// The client of `body` leaves while the first step is held; the sequence must end without a second
/// one.
void check_left(const std::string& body, const std::function<void(Client&)>& leave) {
  TestServer server;
  server.executor.close_gate();
  Client client(server);
  client.send(post_bytes("/v1/completions", body));
  REQUIRE(eventually([&] { return server.executor.is_held(); }));
  leave(client);
  REQUIRE(eventually([&] { return server.door->live_requests() == 0; }));
  // Step by step, since a cancel may come a moment later when the client left before its answer was
  // set up. The status is that of the last whole step: the count tells that the cancel was seen.
  CHECK(eventually([&] {
    if (server.executor.is_held()) server.executor.allow_steps(1);
    return cancelled(server, CancelCause::kClientGone) == 1;
  }));
  CHECK(eventually([&] { return server.is_idle(); }));
  CHECK(server.engine->status().generation_tokens_total < 200);
}

}  // namespace

TEST_CASE("HttpServer: a client that leaves ends its sequence within a step", "[server]") {
  for (const std::string& body : {kWhole, kStream}) {
    check_left(body, [](Client& client) { client.close(); });
    check_left(body, [](Client& client) { client.reset(); });
    check_left(body, [](Client& client) { client.shut_write(); });
  }
}

TEST_CASE("HttpServer: a client that sent much ahead is still seen to leave", "[server]") {
  // Past what is kept of it, the bytes are dropped, but read.
  const std::string ahead(300U << 10U, 'x');
  for (const std::string& body : {kWhole, kStream}) {
    check_left(body, [&ahead](Client& client) {
      client.send(ahead);
      client.shut_write();
    });
  }
}

TEST_CASE("HttpServer: what is sent ahead past the bound ends the connection", "[server]") {
  TestServer server;
  server.executor.close_gate();
  Client client(server);
  client.send(post_bytes("/v1/completions", R"({"prompt":"hello","max_tokens":2})"));
  REQUIRE(eventually([&] { return server.executor.is_held(); }));
  Client other(server);
  // More than sockets hold: once it is sent, most of it was read.
  client.send(std::string(32U << 20U, 'x'));
  server.executor.open_gate();
  CHECK(client.read_response().json()["usage"]["completion_tokens"] == 2);
  CHECK(client.at_end());
  CHECK(other.get("/livez").status == 200);
  CHECK(eventually([&] { return server.door->live_requests() == 0; }));
}

TEST_CASE("HttpServer: a client that leaves in mid-body is counted as gone", "[server]") {
  TestServer server;
  {
    Client client(server);
    client.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{");
    REQUIRE(eventually([&] { return server.door->live_requests() == 1; }));
  }
  REQUIRE(eventually([&] { return server.door->live_requests() == 0; }));
  Client next(server);
  const std::string metrics = next.get("/metrics").body;
  CHECK(metrics.find(R"(method="POST",status="4xx"} 1)") != std::string::npos);
  CHECK(metrics.find(R"(status="0xx")") == std::string::npos);
}

TEST_CASE("HttpServer: bodies of all clients together are bounded", "[server]") {
  HttpOptions options;
  options.max_waiting_body_bytes = 4 * RequestReader::kBodyBaseBytes;
  TestServer server(options);
  const std::string path = "/tokenize";
  const std::string body = R"({"prompt":"x"})";
  Client patient(server);
  CHECK(patient.post(path, body).status == 200);
  std::vector<std::unique_ptr<Client>> holders;
  for (int i = 0; i < 4; ++i) {
    holders.push_back(std::make_unique<Client>(server));
    holders.back()->send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n");
  }
  const auto answer = [&] { return Client(server).post(path, body); };
  REQUIRE(eventually([&] { return answer().status == 429; }));
  CHECK(answer().error_code() == "queue_full");
  CHECK(patient.get("/livez").status == 200);
  holders.clear();
  CHECK(eventually([&] { return answer().status == 200; }));
}

// What threw in a handler once left its connection open, and its sequence running, until the client
// acted.
TEST_CASE("HttpServer: a failure of our own ends its connection, and no other", "[server]") {
  TestServer server;
  Client other(server);
  CHECK(other.get("/livez").status == 200);
  const std::string bytes = post_bytes("/tokenize", std::string(3U << 20U, ' '));
  Client client(server);
  {
    const FailingMemory failing(1U << 20U);  // the body's string must grow past it
    client.send(bytes);
    CHECK(client.at_end());
  }
  CHECK(eventually([&] { return server.door->live_requests() == 0; }));
  CHECK(other.get("/metrics").body.find(R"(method="POST",status="5xx"} 1)") != std::string::npos);
}

TEST_CASE("HttpServer: a failure of our own while an answer is made ends its sequence",
          "[server]") {
  const std::string ahead(60U << 10U, 'x');
  for (const std::string& body : {kWhole, kStream}) {
    TestServer server;
    server.executor.close_gate();
    Client client(server);
    client.send(post_bytes("/v1/completions", body));
    REQUIRE(eventually([&] { return server.executor.is_held(); }));
    {
      const FailingMemory failing(40U << 10U);  // what is kept of bytes sent ahead needs more
      client.send(ahead);
      CHECK(client.at_end());
    }
    CHECK(eventually([&] { return server.door->live_requests() == 0; }));
    // Step by step, as in check_left: the failure may come before the answer was set up.
    CHECK(eventually([&] {
      if (server.executor.is_held()) server.executor.allow_steps(1);
      return cancelled(server, CancelCause::kClientGone) == 1;
    }));
    CHECK(eventually([&] { return server.is_idle(); }));
  }
}

TEST_CASE("HttpServer: a client that leaves in mid-stream ends its sequence", "[server]") {
  TestServer server;
  server.executor.close_gate();
  server.executor.allow_steps(5);
  Client client(server);
  client.send(post_bytes("/v1/completions", kStream));
  CHECK(client.read_head().status == 200);
  CHECK(client.read_chunk().starts_with("data: "));
  client.reset();
  REQUIRE(eventually([&] { return server.door->live_requests() == 0; }));
  server.executor.open_gate();
  // The status is that of the last whole step: the count tells that the cancel was seen.
  CHECK(eventually([&] { return cancelled(server, CancelCause::kClientGone) == 1; }));
  CHECK(eventually([&] { return server.is_idle(); }));
  CHECK(server.engine->status().generation_tokens_total < 200);
}

TEST_CASE("HttpServer: clients that leave while queued never start", "[server]") {
  HttpOptions options;
  options.ping_interval = std::chrono::milliseconds(5);
  TestServer server(options);
  server.executor.close_gate();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 30; ++i) {  // 8 run at once
    clients.push_back(std::make_unique<Client>(server));
    clients.back()->send(post_bytes("/v1/completions", kStream));
  }
  // The comments of a waiting stream say that its request is with the engine.
  for (const auto& client : clients) CHECK(client->read_head().status == 200);
  REQUIRE(eventually([&] { return server.executor.is_held(); }));
  clients.clear();
  REQUIRE(eventually([&] { return server.door->live_requests() == 0; }));
  server.executor.open_gate();
  CHECK(eventually([&] { return cancelled(server, CancelCause::kClientGone) == 30; }));
  CHECK(eventually([&] { return server.is_idle(); }));
  CHECK(server.executor.requests().size() <= 8);
}

TEST_CASE("HttpServer: a reader that never reads is ended by the write timeout", "[server]") {
  HttpOptions options;
  options.write_timeout = std::chrono::milliseconds(50);
  TestServer server(options, 64, 512);
  // A third of the answer is some 20 MB, more than sockets hold; then the model waits.
  server.executor.close_gate();
  server.executor.allow_steps(1000);
  Client client(server, 1024);
  const std::string many =
      R"({"prompt":["a","b","c","d","e","f","g","h"],"n":16,"max_tokens":200,"logprobs":20,"stream":true})";
  client.send(post_bytes("/v1/completions", many));
  CHECK(eventually([&] { return server.door->live_requests() == 1; }));
  CHECK(eventually([&] { return server.door->live_requests() == 0; }));
  server.executor.open_gate();
  CHECK(eventually([&] { return cancelled(server, CancelCause::kSlowClient) > 0; }));
  CHECK(eventually([&] { return server.is_idle(); }));
  CHECK(cancelled(server, CancelCause::kClientGone) == 0);
  Client next(server);
  CHECK(next.get("/livez").status == 200);
}

TEST_CASE("HttpServer: requests that do not arrive are ended by their timeouts", "[server]") {
  HttpOptions options;
  options.header_timeout = std::chrono::milliseconds(30);
  options.body_timeout = std::chrono::milliseconds(30);
  options.idle_timeout = std::chrono::milliseconds(30);
  TestServer server(options);
  Client silent(server);
  CHECK(silent.at_end());
  Client half_line(server);
  half_line.send("GET /li");
  CHECK(half_line.at_end());
  Client half_head(server);
  half_head.send("GET /livez HTTP/1.1\r\nHo");
  CHECK(half_head.read_response().error_code() == "request_timeout");
  CHECK(half_head.at_end());
  Client half_body(server);
  half_body.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{");
  const ClientResponse late = half_body.read_response();
  CHECK(late.status == 408);
  CHECK(!late.fields.contains("x-should-retry"));
  Client idle(server);
  CHECK(idle.get("/livez").status == 200);
  CHECK(idle.at_end());
}

TEST_CASE("HttpServer: Expect: 100-continue is answered before the body", "[server]") {
  TestServer server;
  Client client(server);
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n");
  CHECK(client.read_head().status == 100);
  client.send(R"({"prompt":"x"})");
  CHECK(client.read_response().status == 200);
}

TEST_CASE("HttpServer: timeout_ms that passes before the first event is a 408", "[server]") {
  TestServer server;
  server.executor.close_gate();
  Client occupant(server);
  occupant.send(post_bytes("/v1/completions", kWhole));
  REQUIRE(eventually([&] { return server.executor.is_held(); }));
  Client client(server);
  client.send(post_bytes("/v1/completions",
                         R"({"prompt":"hello","max_tokens":9,"timeout_ms":50,"stream":true})"));
  // The engine stands in the occupant's step: the request's time runs out in its mailbox, or on a
  // slow machine on the way there, which must make no difference to the answer.
  REQUIRE(eventually([&] {
    const bool is_submitted = !server.engine->check_room(71).has_value();  // of 72
    return is_submitted ||
           Client(server).get("/metrics").body.find(R"(status="4xx")") != std::string::npos;
  }));
  const TimePoint late = server.clock.now() + std::chrono::milliseconds(60);
  REQUIRE(eventually([&] { return server.clock.now() > late; }));
  server.executor.open_gate();
  const ClientResponse response = client.read_response();
  CHECK(response.status == 408);
  CHECK(response.error_code() == "deadline_exceeded");
  CHECK(response.fields.at("x-should-retry") == "false");
}

TEST_CASE("HttpServer: past the connection limit a client is turned away", "[server]") {
  HttpOptions options;
  options.max_connections = 1;
  TestServer server(options);
  Client first(server);
  CHECK(first.get("/livez").status == 200);
  Client second(server);
  CHECK(second.read_response().status == 503);
  CHECK(first.get("/livez").status == 200);
}

TEST_CASE("HttpServer: stopping with streams open ends them", "[server]") {
  TestServer server;
  server.executor.close_gate();
  server.executor.allow_steps(2);
  Client client(server);
  client.send(post_bytes("/v1/completions", kStream));
  CHECK(client.read_head().status == 200);
  server.door->stop();
  server.executor.open_gate();
  CHECK(eventually([&] { return server.is_idle(); }));
}
