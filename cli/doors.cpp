#include "cli/doors.h"

#include "cli/http_options.h"
#include "cli/startup_error.h"

#include <chrono>
#include <exception>

namespace kvasir::cli {
namespace {

#ifdef KVASIR_WITH_GRPC
server::GrpcOptions grpc_options(const config::ServeOptions& options, const Secrets& secrets) {
  server::GrpcOptions grpc;
  grpc.host = options.host;
  grpc.port = static_cast<std::uint16_t>(options.grpc_port);
  grpc.socket_path = options.grpc_socket;
  grpc.tls = secrets.tls();
  grpc.api_keys = secrets.api_keys();
  grpc.max_receive_bytes = options.max_body_bytes;
  grpc.max_concurrent_streams = options.max_grpc_streams;
  grpc.max_metadata_bytes = static_cast<std::uint32_t>(options.max_header_bytes);
  grpc.write_timeout = std::chrono::milliseconds(options.write_timeout_ms);
  return grpc;
}
#endif

}  // namespace

Doors::Doors(const config::ServeOptions& options, const EngineStack& stack, const Secrets& secrets,
             server::GenerateService& service) {
  server::HttpOptions http = http_options(options, stack);
  http.tls = secrets.tls();
  http.api_keys = secrets.api_keys();
  try {
    http_ = std::make_unique<server::HttpServer>(http, service);
#ifdef KVASIR_WITH_GRPC
    grpc_ = std::make_unique<server::GrpcServer>(grpc_options(options, secrets), service);
#endif
  } catch (const std::exception& error) {
    throw StartupError(error.what());
  }
}

std::uint16_t Doors::http_port() const { return http_->port(); }

std::uint16_t Doors::grpc_port() const {
#ifdef KVASIR_WITH_GRPC
  return grpc_->port();
#else
  return 0;
#endif
}

std::uint32_t Doors::live_requests() const {
#ifdef KVASIR_WITH_GRPC
  return http_->live_requests() + grpc_->live_calls();
#else
  return http_->live_requests();
#endif
}

void Doors::publish_readiness() {
#ifdef KVASIR_WITH_GRPC
  grpc_->publish_readiness();
#endif
}

void Doors::begin_drain() {
#ifdef KVASIR_WITH_GRPC
  grpc_->begin_drain();
#endif
}

void Doors::stop() {
  http_->stop_accepting();
  http_->stop();
#ifdef KVASIR_WITH_GRPC
  grpc_->stop();
#endif
}

}  // namespace kvasir::cli
