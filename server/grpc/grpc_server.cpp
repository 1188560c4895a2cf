#include "server/grpc/grpc_server.h"

#include "core/check.h"
#include "server/grpc/call_gate.h"
#include "server/grpc/call_limits.h"
#include "server/grpc/health_service.h"
#include "server/grpc/inference_service.h"
#include "server/grpc/tls_credentials.h"
#include "server/unix_socket.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace kvasir::server {
namespace {

constexpr int kSecondMs = 1'000;
constexpr int kMinuteMs = 60 * kSecondMs;
constexpr std::uint32_t kMaxLiveCalls =
    1024;  // over all connections, as the HTTP door's connections
constexpr std::uint64_t kMaxBufferedBytes = 256U << 20U;  // but never less than two messages
/// Calls that have ended get so long to reach their clients when the server stops.
constexpr std::chrono::seconds kLastMessages{2};
constexpr int kMaxThreads = 32;  // of gRPC's own: a few for callbacks, the rest bounds reflection

/// Protobuf would write to stderr on its own, and clients can make it: by text that is not UTF-8.
/// The call gets its error anyway.
void log_protobuf(google::protobuf::LogLevel level, const char* /*file*/, int /*line*/,
                  const std::string& message) {
  const bool is_fatal = level == google::protobuf::LOGLEVEL_FATAL;  // Protobuf aborts next
  spdlog::log(is_fatal ? spdlog::level::critical : spdlog::level::debug, "protobuf: {}", message);
}

void apply_settings(const GrpcOptions& options, grpc::ServerBuilder& builder) {
  KVASIR_CHECK(options.max_receive_bytes <= std::numeric_limits<int>::max());
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_receive_bytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             static_cast<int>(options.max_concurrent_streams));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE,
                             static_cast<int>(options.max_metadata_bytes));
  // Without this a second daemon on the same port would share its connections instead of failing to
  // start.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Clients may ping every 10 s, also while idle; one that pings faster is sent away after two
  // strikes.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10 * kSecondMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Our own pings find connections whose peer is gone without a FIN.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kMinuteMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20 * kSecondMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10 * kSecondMs);
  // Connections are asked to go now and then, so that clients spread again over servers; calls may
  // end first.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, 60 * kMinuteMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, 60 * kMinuteMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 10 * kMinuteMs);
  // Never inflate: the size limit is of the compressed message, and a few KiB can become gigabytes.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  grpc::ResourceQuota quota("kvasir");
  quota.SetMaxThreads(kMaxThreads);
  // gRPC 1.51 looks at a message's size when all of it is there, so what connections may hold is
  // bounded here: past it gRPC narrows its windows and then ends streams.
  quota.Resize(std::max(kMaxBufferedBytes, 2 * options.max_receive_bytes));
  builder.SetResourceQuota(quota);
}

}  // namespace

struct GrpcServer::Impl {
  explicit Impl(GenerateService& generate_service) : service(generate_service) {}

  GenerateService& service;
  std::shared_ptr<CallWorkers> workers = std::make_shared<CallWorkers>();
  std::shared_ptr<CallLimits> limits;
  std::unique_ptr<grpc::Service> inference;
  HealthService health{service};
  std::shared_ptr<grpc::ServerCredentials> tls;  // null: no TLS
  std::unique_ptr<grpc::Server> server;  // destroyed first: it refers to the services and to `tls`
  std::optional<SocketFile> socket_file;
  int port = 0;

  std::thread shutdown;  // joinable from begin_drain() on
  std::mutex mutex;      // guards what follows
  std::condition_variable changed;
  bool is_shut_down = false;

  void listen(const GrpcOptions& options);
  void begin_shutdown();
};

GrpcServer::GrpcServer(const GrpcOptions& options, GenerateService& service)
    : impl_(std::make_unique<Impl>(service)) {
  static const bool process_set_up = [] {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    google::protobuf::SetLogHandler(&log_protobuf);
    return true;
  }();
  static_cast<void>(process_set_up);
  // A quarter more than HTTP/2 lets be open: a call that its client has just reset may still be
  // counted when the client already begins the next one.
  const std::uint32_t streams = options.max_concurrent_streams;
  impl_->limits = std::make_shared<CallLimits>(CallBounds{streams + (streams / 4), kMaxLiveCalls});
  service.metrics().set_grpc_calls([limits = impl_->limits] { return limits->live(); });
  impl_->inference = make_inference_service(
      service, impl_->workers,
      CallGate(service, options.api_keys, impl_->limits, options.write_timeout));
  publish_readiness();
  impl_->listen(options);
}

void GrpcServer::Impl::listen(const GrpcOptions& options) {
  grpc::ServerBuilder builder;
  apply_settings(options, builder);
  const bool is_ipv6 = options.host.find(':') != std::string::npos && options.host.front() != '[';
  const std::string host = is_ipv6 ? "[" + options.host + "]" : options.host;
  const std::string address = host + ":" + std::to_string(options.port);
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (options.tls != nullptr) credentials = tls = tls_credentials(*options.tls);
  builder.AddListeningPort(address, credentials, &port);
  std::string where = address;
  int socket_port = 1;  // gRPC's number for any Unix socket
  if (!options.socket_path.empty()) {
    if (auto ok = clear_socket_path(options.socket_path); !ok)
      throw std::runtime_error("gRPC: " + ok.error().message);
    builder.AddListeningPort("unix:" + options.socket_path, grpc::InsecureServerCredentials(),
                             &socket_port);
    where += " and the Unix socket " + options.socket_path;
  }
  builder.RegisterService(inference.get());
  builder.RegisterService(&health);
  server = builder.BuildAndStart();
  if (server == nullptr || port == 0 || socket_port == 0) {
    throw std::runtime_error("gRPC: cannot listen on " + where +
                             " (in use, or no address of this machine)");
  }
  if (!options.socket_path.empty()) socket_file.emplace(options.socket_path);
}

GrpcServer::~GrpcServer() { stop(); }

std::uint16_t GrpcServer::port() const { return static_cast<std::uint16_t>(impl_->port); }

void GrpcServer::publish_readiness() { impl_->health.publish(); }

std::uint32_t GrpcServer::live_calls() const { return impl_->limits->live(); }

void GrpcServer::begin_drain() {
  if (impl_->server != nullptr && !impl_->shutdown.joinable()) impl_->begin_shutdown();
}

/// Shutdown() sends GOAWAY and returns when the last call is done, hence the thread.
void GrpcServer::Impl::begin_shutdown() {
  shutdown = std::thread([this] {
    server->Shutdown();
    const std::lock_guard lock(mutex);
    is_shut_down = true;
    changed.notify_all();
  });
}

void GrpcServer::stop() {
  if (impl_->server != nullptr) {
    begin_drain();
    impl_->health.shut_down();
    {
      std::unique_lock lock(impl_->mutex);
      // What is left after that has a client that does not read, or one that keeps reflection open.
      if (!impl_->changed.wait_for(lock, kLastMessages, [this] { return impl_->is_shut_down; }))
        grpc_server_cancel_all_calls(impl_->server->c_server());
    }
    impl_->shutdown.join();
    impl_->server->Wait();
    impl_->server.reset();
    impl_->socket_file.reset();
  }
  impl_->workers->prepare.stop();
  impl_->workers->pump.stop();
}

}  // namespace kvasir::server
