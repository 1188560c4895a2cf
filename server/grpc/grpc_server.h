// The gRPC door: kvasir.v1.Inference, health and reflection, over the same service and validator as
// REST. gRPC and Protobuf stay behind this header. Connections are not counted, as gRPC 1.51 offers
// no way to: each holds at most max_concurrent_streams streams and goes after ten idle minutes, all
// of them share one quota of 256 MiB of buffers, and their number ends at the process's limit of
// file descriptors.
#pragma once

#include "server/generate_service.h"

#include <cstdint>
#include <memory>
#include <string>

namespace kvasir::server {

struct GrpcOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 50051;  // 0 picks a free one
  std::uint32_t max_receive_bytes = 8U << 20U;
  std::uint32_t max_concurrent_streams = 100;
  std::uint32_t max_metadata_bytes = 16U << 10U;
};

class GrpcServer {
 public:
  /// Binds and starts. Throws std::runtime_error naming host and port when it cannot bind.
  GrpcServer(const GrpcOptions& options, GenerateService& service);
  ~GrpcServer();
  [[nodiscard]] std::uint16_t port() const;
  /// Health goes to NOT_SERVING (loading, draining) or SERVING as the service's readiness says;
  /// call after a change.
  void publish_readiness();
  [[nodiscard]] std::uint32_t live_calls() const;
  /// Ends what is left and joins.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::server
