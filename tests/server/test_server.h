// The REST door over loopback with a real engine behind it and a script for a model, and a client
// of raw bytes. Waits are bounded and on state, never for a time.
#pragma once

#include "engine/engine.h"
#include "engine/engine_thread.h"
#include "server/generate_service.h"
#include "server/http/http_server.h"
#include "tests/server/tiny_model.h"
#include "tests/server/wire.h"

#include <nlohmann/json.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvasir::server::testing {

inline constexpr std::uint32_t kTinyContext = 256;

/// True as soon as it holds; false when it does not within ten seconds.
[[nodiscard]] bool eventually(const std::function<bool()>& holds);

/// One layer of one head: 128 bytes a token, 2,048 a block of 16 tokens.
[[nodiscard]] kvcache::KvGeometry tiny_geometry();

struct TestEngineOptions {
  std::uint32_t num_blocks = 64;
  std::uint32_t max_waiting = 64;  // beside eight that run
  kvcache::KvGeometry geometry = tiny_geometry();
  double audit_rate = 0.0;
  std::function<void()> on_audit_finding = {};
  ServiceOptions service = {};
};

/// The real one, and what a test puts in front of it: a step that takes long takes no time here.
class ShiftedClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override {
    return steady_.now() + Duration(ahead_ns_.load());
  }
  void advance(Duration by) { ahead_ns_.fetch_add(by.count()); }

 private:
  SteadyClock steady_;
  std::atomic<Duration::rep> ahead_ns_{0};
};

/// Engine and service without a door.
class TestEngine {
 public:
  explicit TestEngine(const TestEngineOptions& options);
  explicit TestEngine(std::uint32_t num_blocks = 64, std::uint32_t max_waiting = 64)
      : TestEngine(TestEngineOptions{.num_blocks = num_blocks, .max_waiting = max_waiting}) {}
  ~TestEngine();

  ScriptExecutor executor{byte_tokens("abcdefgh")};
  ShiftedClock clock;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<GenerateService> service;
  std::unique_ptr<engine::EngineThread> thread;

  [[nodiscard]] bool is_idle() const;
};

struct TestServer : TestEngine {
  explicit TestServer(const TestEngineOptions& engine_options);
  explicit TestServer(HttpOptions options = {}, std::uint32_t num_blocks = 64,
                      std::uint32_t max_waiting = 64);
  ~TestServer();
  std::unique_ptr<HttpServer> door;
};

struct ClientResponse {
  int status = 0;
  std::map<std::string, std::string> fields;  // names in lower case
  std::string body;                           // chunks joined
  bool ended = true;                          // false: the connection broke inside
  [[nodiscard]] nlohmann::json json() const { return nlohmann::json::parse(body); }
  [[nodiscard]] std::string error_code() const;
  [[nodiscard]] std::string error_param() const;
};

class Client {
 public:
  explicit Client(const TestServer& server, int receive_buffer_bytes = 0);
  explicit Client(std::unique_ptr<Wire> wire) : wire_(std::move(wire)) {}
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(std::string_view bytes);
  void shut_write();
  /// Closes by a reset.
  void reset();
  void close();

  /// The next whole response. Throws when nothing comes within ten seconds.
  ClientResponse read_response(bool is_head = false);
  /// The next data of a chunked body that was begun by read_head; empty at its end.
  ClientResponse read_head();
  std::string read_chunk();
  /// True when the server has closed and nothing is left to read.
  bool at_end();

  /// `fields` are whole lines.
  ClientResponse get(std::string_view path, std::string_view fields = "");
  ClientResponse post(std::string_view path, std::string_view body);

 private:
  bool fill();
  std::string read_line();
  std::string read_bytes(std::size_t count);

  std::unique_ptr<Wire> wire_;
  std::string buffer_;
};

[[nodiscard]] std::string post_bytes(std::string_view path, std::string_view body);
/// The `data:` payloads of an event stream; [DONE] as the last one.
[[nodiscard]] std::vector<std::string> events_of(std::string_view body);

}  // namespace kvasir::server::testing
