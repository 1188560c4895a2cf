// The gRPC door: kvasir.v1.Inference, health and reflection, over the same service and validator as
// REST. gRPC and Protobuf stay behind this header. Connections are not counted, as gRPC 1.51 offers
// no way to: each holds at most max_concurrent_streams streams and goes after ten idle minutes, all
// of them share one quota of 256 MiB of buffers, and their number ends at the process's limit of
// file descriptors.
#pragma once

#include "server/api_keys.h"
#include "server/generate_service.h"
#include "server/tls_identity.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace kvasir::server {

struct GrpcOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 50051;         // 0 picks a free one
  std::string socket_path;            // a Unix socket beside the port, without TLS; empty: none
  const TlsIdentity* tls = nullptr;   // null: no TLS. Has a pair, outlives the server
  const ApiKeys* api_keys = nullptr;  // null: no keys. Outlives the server
  std::uint64_t max_receive_bytes = 8U << 20U;  // of one message; below 2 GiB
  std::uint32_t max_concurrent_streams = 100;   // of one connection
  std::uint32_t max_metadata_bytes = 16U << 10U;
  std::chrono::milliseconds write_timeout{30'000};
};

class GrpcServer {
 public:
  /// Binds and starts. Throws std::runtime_error naming what cannot be bound.
  GrpcServer(const GrpcOptions& options, GenerateService& service);
  ~GrpcServer();
  [[nodiscard]] std::uint16_t port() const;
  /// Health goes to NOT_SERVING (loading, draining) or SERVING as the service's readiness says;
  /// call after a change.
  void publish_readiness();
  [[nodiscard]] std::uint32_t live_calls() const;
  /// Stops listening and asks the clients of open connections to go (GOAWAY); calls that run go on.
  /// Idempotent; returns at once.
  void begin_drain();
  /// Ends what is left and joins. What was just finished gets two seconds to reach its client.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::server
