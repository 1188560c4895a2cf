// The REST door: accepts connections over TCP, TLS and a Unix socket, speaks HTTP/1.1, routes to
// the service and streams events. Validation and text are generate_service's; Boost stays behind
// this header.
#pragma once

#include "server/generate_service.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace kvasir::server {

class ApiKeys;
class TlsIdentity;

/// What GET /tokenizer_info says; what a model does not have is null there.
struct TokenizerInfo {
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> pad_token;
  std::optional<std::string> chat_template;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;      // 0 picks a free one
  std::string socket_path = {};   // a Unix socket beside the port, without TLS; empty: none
  std::string metrics_host = {};  // of the listener for /metrics alone, without TLS;
                                  // empty: host
  std::optional<std::uint16_t> metrics_port = {};    // absent: /metrics is served with all the rest
  const TlsIdentity* tls = nullptr;                  // null: no TLS. Outlives the server
  const ApiKeys* api_keys = nullptr;                 // null: no keys. Outlives the server
  std::string cors_origins = {};                     // with commas between, or "*"; empty: no CORS
  std::optional<TokenizerInfo> tokenizer_info = {};  // absent: GET /tokenizer_info is not there
  std::uint32_t num_threads = 1;
  std::uint64_t max_body_bytes = 8ULL << 20U;
  std::uint32_t max_header_bytes = 16U << 10U;
  std::uint32_t max_uri_bytes = 8U << 10U;
  std::uint32_t max_header_fields = 100;
  std::uint32_t max_connections = 4096;  // the newest past it is turned away with a 503
  std::uint64_t max_waiting_body_bytes = 256ULL << 20U;  // of all connections together
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{30'000};
  std::chrono::milliseconds idle_timeout{75'000};
  std::chrono::milliseconds write_timeout{30'000};
  std::chrono::milliseconds ping_interval{15'000};
  std::chrono::milliseconds linger_timeout{
      2'000};  // a refused request's bytes are read for so long, then dropped
  // What GET /version says.
  std::string version = "0.1.0";
  std::string commit = "unknown";
  std::string build = "unknown";
};

class HttpServer {
 public:
  /// Binds to all addresses of `host`, and to the socket and the port of metrics if they are set,
  /// and starts to answer at once (readiness decides what). Throws std::runtime_error naming what
  /// cannot be bound. `service` must outlive the server.
  HttpServer(const HttpOptions& options, GenerateService& service);
  ~HttpServer();
  [[nodiscard]] std::uint16_t port() const;
  /// Of the listener for metrics; 0 when there is none.
  [[nodiscard]] std::uint16_t metrics_port() const;
  /// Stops accepting; live answers go on.
  void stop_accepting();
  /// Live requests, streams included.
  [[nodiscard]] std::uint32_t live_requests() const;
  /// Closes everything and joins the threads.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::server
