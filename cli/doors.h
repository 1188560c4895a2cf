// Both doors of the daemon, with the options that each of them gets; gRPC may be compiled out.
#pragma once

#include "cli/engine_stack.h"
#include "cli/secrets.h"
#include "config/load.h"
#include "server/generate_service.h"
#include "server/http/http_server.h"

#include <cstdint>
#include <memory>
#ifdef KVASIR_WITH_GRPC
#include "server/grpc/grpc_server.h"
#endif

namespace kvasir::cli {

class Doors {
 public:
  /// Opens them. `service` and `secrets` outlive the doors. Throws StartupError.
  Doors(const config::ServeOptions& options, const EngineStack& stack, const Secrets& secrets,
        server::GenerateService& service);

  [[nodiscard]] std::uint16_t http_port() const;
  /// 0 without gRPC.
  [[nodiscard]] std::uint16_t grpc_port() const;
  [[nodiscard]] std::uint32_t live_requests() const;
  /// Says what the service's readiness is now.
  void publish_readiness();
  /// gRPC stops listening and its clients are told to go. REST listens on, so that /readyz can say
  /// 503 and new requests learn why.
  void begin_drain();
  void stop();

 private:
  std::unique_ptr<server::HttpServer> http_;
#ifdef KVASIR_WITH_GRPC
  std::unique_ptr<server::GrpcServer> grpc_;
#endif
};

}  // namespace kvasir::cli
