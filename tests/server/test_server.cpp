#include "tests/server/test_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <sys/socket.h>
#include <thread>
#include <utility>

namespace kvasir::server::testing {
namespace {

ModelInfo tiny_model_info(const TestEngineOptions& options) {
  ModelInfo model;
  model.served_name = "tiny/model";
  model.aliases = {"alias"};
  model.root = "tiny.gguf";
  model.created_unix = 1;
  model.context_tokens = kTinyContext;
  model.vocab_size = kTinyVocabSize;
  model.geometry = options.geometry;
  model.num_blocks = options.num_blocks;
  model.kv_budget_bytes = options.num_blocks * model.geometry.bytes_per_block();
  model.system_fingerprint = "fp_test";
  model.query_heads = 4;
  model.weights_bytes = 4096;
  return model;
}

}  // namespace

kvcache::KvGeometry tiny_geometry() {
  return {.groups = {{.num_layers = 1, .num_kv_heads = 1, .head_dim = 16, .window_tokens = 0}},
          .type = kvcache::KvType::kF32,
          .block_tokens = 16};
}

bool eventually(const std::function<bool()>& holds) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

TestEngine::TestEngine(const TestEngineOptions& options) {
  engine::EngineOptions of_engine;
  of_engine.geometry = options.geometry;
  of_engine.num_blocks = options.num_blocks;
  of_engine.limits.context_tokens = kTinyContext;
  of_engine.limits.max_sequences = 8;
  of_engine.limits.max_step_tokens = options.geometry.largest_chunk;
  of_engine.max_waiting_sequences = options.max_waiting;
  of_engine.audit_rate = options.audit_rate;
  of_engine.on_audit_finding = [told = options.on_audit_finding](const std::string& /*what*/) {
    if (told) told();
  };
  engine = std::make_unique<engine::Engine>(of_engine, executor, clock);
  service = std::make_unique<GenerateService>(tiny_model_info(options), *engine, tiny_tokenizer(),
                                              &tiny_chat_template(), clock, RequestLimits{},
                                              options.service);
  service->set_readiness(Readiness::kReady);
  thread = std::make_unique<engine::EngineThread>(*engine);
}

TestEngine::~TestEngine() { executor.open_gate(); }

bool TestEngine::is_idle() const {
  const engine::EngineStatus status = engine->status();
  return status.running_sequences == 0 && status.waiting_sequences == 0 && status.live_blocks == 0;
}

TestServer::TestServer(const TestEngineOptions& engine_options) : TestEngine(engine_options) {
  HttpOptions options;
  options.port = 0;
  door = std::make_unique<HttpServer>(options, *service);
}

TestServer::TestServer(HttpOptions options, std::uint32_t num_blocks, std::uint32_t max_waiting)
    : TestEngine(num_blocks, max_waiting) {
  options.port = 0;
  door = std::make_unique<HttpServer>(options, *service);
}

TestServer::~TestServer() {
  executor.open_gate();
  door->stop();
}

std::string ClientResponse::error_code() const {
  return json()["error"]["code"].get<std::string>();
}

std::string ClientResponse::error_param() const {
  const nlohmann::json param = json()["error"]["param"];
  return param.is_null() ? "" : param.get<std::string>();
}

Client::Client(const TestServer& server, int receive_buffer_bytes)
    : wire_(tcp_wire(server.door->port(), receive_buffer_bytes)) {}

void Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const long sent = wire_->send(bytes);
    if (sent <= 0) return;  // the server has closed; what it said can still be read
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void Client::shut_write() { ::shutdown(wire_->descriptor(), SHUT_WR); }

void Client::reset() {
  const linger now{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(wire_->descriptor(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

void Client::close() { wire_->close(); }

/// False at the end of the connection.
bool Client::fill() {
  std::array<char, 4096> bytes{};
  errno = 0;
  const long received = wire_->receive(bytes);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
    throw std::runtime_error("nothing came");
  if (received <= 0) return false;
  buffer_.append(bytes.data(), static_cast<std::size_t>(received));
  return true;
}

std::string Client::read_line() {
  std::size_t end = std::string::npos;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (!fill()) throw std::runtime_error("the connection ended inside a line: " + buffer_);
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return line;
}

std::string Client::read_bytes(std::size_t count) {
  while (buffer_.size() < count) {
    if (!fill()) throw std::runtime_error("the connection ended inside a body");
  }
  std::string bytes = buffer_.substr(0, count);
  buffer_.erase(0, count);
  return bytes;
}

ClientResponse Client::read_head() {
  ClientResponse response;
  const std::string status_line = read_line();
  if (!status_line.starts_with("HTTP/1.1 "))
    throw std::runtime_error("no status line: " + status_line);
  response.status = std::stoi(status_line.substr(9, 3));
  for (std::string line = read_line(); !line.empty(); line = read_line()) {
    std::string name = line.substr(0, line.find(':'));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    response.fields[name] = line.substr(line.find(':') + 2);
  }
  return response;
}

std::string Client::read_chunk() {
  const std::size_t size = std::stoul(read_line(), nullptr, 16);
  std::string data = read_bytes(size);
  if (!read_line().empty()) throw std::runtime_error("a chunk without its end");
  return data;
}

ClientResponse Client::read_response(bool is_head) {
  ClientResponse response = read_head();
  if (is_head || response.status == 204) return response;
  if (response.fields.contains("content-length")) {
    response.body = read_bytes(std::stoul(response.fields["content-length"]));
  } else if (response.fields.contains("transfer-encoding")) {
    for (std::string chunk = read_chunk(); !chunk.empty(); chunk = read_chunk())
      response.body += chunk;
  } else {
    while (fill()) {
    }
    response.body = std::exchange(buffer_, {});
  }
  return response;
}

bool Client::at_end() { return buffer_.empty() && !fill(); }

ClientResponse Client::get(std::string_view path, std::string_view fields) {
  send("GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n" + std::string(fields) + "\r\n");
  return read_response();
}

ClientResponse Client::post(std::string_view path, std::string_view body) {
  send(post_bytes(path, body));
  return read_response();
}

std::string post_bytes(std::string_view path, std::string_view body) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

std::vector<std::string> events_of(std::string_view body) {
  std::vector<std::string> events;
  while (!body.empty()) {
    const std::size_t end = body.find("\n\n");
    if (end == std::string_view::npos) throw std::runtime_error("an event without its end");
    std::string_view event = body.substr(0, end);
    body.remove_prefix(end + 2);
    if (event.starts_with(":")) continue;
    if (!event.starts_with("data: ")) throw std::runtime_error("no data in an event");
    events.emplace_back(event.substr(6));
  }
  return events;
}

}  // namespace kvasir::server::testing
