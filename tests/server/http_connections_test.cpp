// Many connections at once: idle ones cost little and disturb nobody, the limit holds, and a
// process without descriptors goes on when it has some again. And the end of all: the drain.
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <fstream>
#include <sys/resource.h>
#include <unistd.h>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;
using nlohmann::json;

namespace {

using namespace std::chrono_literals;

const std::string kStream = R"({"prompt":"hello","max_tokens":200,"stream":true})";

/// Descriptors for so many connections, both ends of which are this process's.
class FileLimit {
 public:
  explicit FileLimit(rlim_t files) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit raised = before_;
    raised.rlim_cur = std::min(files, before_.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &raised);
    has_room_ = raised.rlim_cur >= files;
  }
  ~FileLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;
  [[nodiscard]] bool has_room() const { return has_room_; }

 private:
  rlimit before_{};
  bool has_room_ = false;
};

std::uint64_t connections(Client& client) {
  const std::string text = client.get("/metrics").body;
  const std::size_t at = text.find("\nkvasir_http_connections");
  return std::stoul(text.substr(text.find(' ', at) + 1));
}

std::string text_of(const std::vector<std::string>& events) {
  std::string text;
  for (const std::string& event : events) {
    if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
  }
  return text;
}

}  // namespace

TEST_CASE("HttpServer: a thousand idle connections leave a stream as it is", "[server]") {
  const FileLimit files(2300);
  if (!files.has_room()) {
    WARN("skipped: the limit of open files is below 2300");
    return;
  }
  TestServer server;
  Client control(server);
  const std::string alone = text_of(events_of(control.post("/v1/completions", kStream).body));
  server.executor.close_gate();
  Client streaming(server);
  streaming.send(post_bytes("/v1/completions", kStream));
  REQUIRE(eventually([&] { return server.executor.is_held(); }));
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 1000; ++i) {
    idle.push_back(std::make_unique<Client>(server));
    if (i % 2 == 0) CHECK(idle.back()->get("/livez").status == 200);  // kept alive
  }
  CHECK(eventually([&] { return connections(control) == 1002; }));
  server.executor.open_gate();
  CHECK(text_of(events_of(streaming.read_response().body)) == alone);
  for (int i = 0; i < 1000; i += 100) {  // both kinds are still served
    CHECK(idle[static_cast<std::size_t>(i)]->get("/livez").status == 200);
    CHECK(idle[static_cast<std::size_t>(i) + 1]->get("/livez").status == 200);
  }
  idle.clear();
  CHECK(eventually([&] { return connections(control) == 2; }));
}

TEST_CASE("HttpServer: streams that nobody reads end, and one that is read is as it is alone",
          "[server]") {
  HttpOptions options;
  options.write_timeout = 200ms;
  TestServer server(options, 256, 512);
  Client reading(server);
  const std::string alone = text_of(events_of(reading.post("/v1/completions", kStream).body));
  // Each is more than both ends' sockets hold, so that its last bytes are never taken.
  const std::string unread =
      R"({"prompt":"hello","max_tokens":200,"logprobs":20,"n":4,"stream":true})";
  std::vector<std::unique_ptr<Client>> deaf;
  for (int i = 0; i < 50; ++i) {
    deaf.push_back(std::make_unique<Client>(server, 1024));
    deaf.back()->send(post_bytes("/v1/completions", unread));
  }
  for (int i = 0; i < 5; ++i)
    CHECK(text_of(events_of(reading.post("/v1/completions", kStream).body)) == alone);
  CHECK(eventually([&] { return server.door->live_requests() == 0; }));
  CHECK(eventually([&] { return server.is_idle(); }));
  // None of them got all of its answer.
  for (const auto& client : deaf) CHECK_THROWS(client->read_response());
}

TEST_CASE("HttpServer: at the limit the newest connection is turned away", "[server]") {
  TestServer server({.max_connections = 2});
  Client first(server);
  CHECK(first.get("/livez").status == 200);
  auto second = std::make_unique<Client>(server);
  CHECK(second->get("/livez").status == 200);
  Client third(server);
  third.send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
  const ClientResponse refused = third.read_response();
  CHECK(refused.status == 503);
  CHECK(refused.error_code() == "engine_unavailable");
  CHECK(refused.fields.at("retry-after") == "5");
  CHECK(refused.fields.at("connection") == "close");
  CHECK(first.get("/livez").status == 200);
  second.reset();
  CHECK(eventually([&] { return Client(server).get("/livez").status == 200; }));
}

TEST_CASE("HttpServer: a door that is full can still be watched", "[server]") {
  TestServer server({.metrics_port = 0, .max_connections = 1});
  Client first(server);
  CHECK(first.get("/livez").status == 200);
  Client metrics(tcp_wire(server.door->metrics_port()));
  CHECK(metrics.get("/metrics").status == 200);
}

TEST_CASE("HttpServer: without descriptors connections wait, and are taken up afterwards",
          "[server]") {
  TestServer server;
  Client before(server);
  CHECK(before.get("/livez").status == 200);
  Client waiting = [&server] {
    auto wire = tcp_wire(server.door->port());
    return Client(std::move(wire));
  }();
  CHECK(waiting.get("/livez").status == 200);
  // All descriptors are taken, then one client's end is given one: the server's end finds none.
  std::vector<int> taken;
  const FileLimit files(64);
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) taken.push_back(fd);
  REQUIRE(!taken.empty());
  ::close(taken.back());
  taken.pop_back();
  Client late(server);
  late.send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(before.get("/livez").status == 200);
  CHECK(before.get("/livez").status == 200);
  for (const int fd : taken) ::close(fd);
  CHECK(late.read_response().status == 200);
}

TEST_CASE("HttpServer: while draining new work is refused and live streams end as they should",
          "[server]") {
  TestServer server;
  server.executor.close_gate();
  server.executor.allow_steps(3);
  Client streaming(server);
  streaming.send(post_bytes("/v1/completions", kStream));
  CHECK(streaming.read_head().status == 200);
  Client idle(server);
  CHECK(idle.get("/readyz").status == 200);
  server.service->set_readiness(Readiness::kDraining);
  const ClientResponse ready = idle.get("/readyz");
  CHECK(ready.status == 503);
  CHECK(ready.error_code() == "draining");
  CHECK(ready.fields.at("retry-after") == "5");
  CHECK(ready.fields.at("connection") == "close");
  CHECK(idle.at_end());
  Client late(server);
  CHECK(late.post("/v1/completions", kStream).error_code() == "draining");
  CHECK(late.at_end());
  Client alive(server);
  CHECK(alive.get("/livez").status == 200);
  server.executor.open_gate();
  std::string body;
  for (std::string chunk = streaming.read_chunk(); !chunk.empty(); chunk = streaming.read_chunk())
    body += chunk;
  CHECK(events_of(body).back() == "[DONE]");
}

TEST_CASE("HttpServer: a stream that outlives the grace ends with an error event", "[server]") {
  TestServer server;
  server.executor.close_gate();
  server.executor.allow_steps(3);
  Client streaming(server);
  streaming.send(post_bytes("/v1/completions", kStream));
  CHECK(streaming.read_head().status == 200);
  Client whole(server);
  whole.send(post_bytes("/v1/completions", R"({"prompt":"hello","max_tokens":200})"));
  REQUIRE(eventually([&] { return server.door->live_requests() == 2; }));
  REQUIRE(eventually([&] { return server.executor.is_held(); }));
  server.service->set_readiness(Readiness::kDraining);
  server.engine->drain(server.clock.now());
  server.executor.open_gate();
  std::string body;
  for (std::string chunk = streaming.read_chunk(); !chunk.empty(); chunk = streaming.read_chunk())
    body += chunk;
  const std::vector<std::string> events = events_of(body);
  CHECK(json::parse(events.back())["error"]["code"] == "draining");
  CHECK(streaming.at_end());
  const ClientResponse refused = whole.read_response();
  CHECK(refused.status == 503);
  CHECK(refused.error_code() == "draining");
  CHECK(eventually([&] { return server.is_idle(); }));
}
