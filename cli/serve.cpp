// `kvasir serve`: loads, builds, opens both doors, runs until a signal and drains. Composition
// only: every part is made elsewhere and knows nothing of the others' lifetimes.
#include "cli/build_info.h"
#include "cli/commands.h"
#include "cli/engine_stack.h"
#include "cli/listen_check.h"
#include "cli/logging.h"
#include "cli/ready_file.h"
#include "cli/request_limits.h"
#include "cli/signals.h"
#include "cli/startup_error.h"
#include "config/cli_flags.h"
#include "config/option_table.h"
#include "engine/engine_thread.h"
#include "server/generate_service.h"
#include "server/http/http_server.h"

#include <CLI/CLI.hpp>
#include <spdlog/spdlog.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unistd.h>
#ifdef KVASIR_WITH_GRPC
#include "server/grpc/grpc_server.h"
#endif

namespace kvasir::cli {
namespace {

/// Time between two looks at whether a drain is over.
constexpr std::chrono::milliseconds kDrainPoll{20};
/// After the grace time the engine has ended every sequence; doors get this long to send the last
/// events.
constexpr std::chrono::seconds kLastEvents{2};

/// Both doors of the daemon; gRPC may be compiled out.
class Doors {
 public:
  Doors(const config::ServeOptions& options, server::GenerateService& service) {
    server::HttpOptions http;
    http.host = options.host;
    http.port = static_cast<std::uint16_t>(options.http_port);
    http.num_threads = options.http_threads;
    http.version = KVASIR_VERSION;
    http.commit = build_commit();
    http.build = build_type();
    http_ = std::make_unique<server::HttpServer>(http, service);
#ifdef KVASIR_WITH_GRPC
    server::GrpcOptions grpc;
    grpc.host = options.host;
    grpc.port = static_cast<std::uint16_t>(options.grpc_port);
    grpc_ = std::make_unique<server::GrpcServer>(grpc, service);
#endif
  }
  [[nodiscard]] std::uint16_t http_port() const { return http_->port(); }
  [[nodiscard]] std::uint16_t grpc_port() const {
#ifdef KVASIR_WITH_GRPC
    return grpc_->port();
#else
    return 0;
#endif
  }
  void publish_readiness() {
#ifdef KVASIR_WITH_GRPC
    grpc_->publish_readiness();
#endif
  }
  [[nodiscard]] std::uint32_t live_requests() const {
#ifdef KVASIR_WITH_GRPC
    return http_->live_requests() + grpc_->live_calls();
#else
    return http_->live_requests();
#endif
  }
  void stop() {
    http_->stop_accepting();
    http_->stop();
#ifdef KVASIR_WITH_GRPC
    grpc_->stop();
#endif
  }

 private:
  std::unique_ptr<server::HttpServer> http_;
#ifdef KVASIR_WITH_GRPC
  std::unique_ptr<server::GrpcServer> grpc_;
#endif
};

std::unique_ptr<Doors> open_doors(const config::ServeOptions& options,
                                  server::GenerateService& service) {
  try {
    return std::make_unique<Doors>(options, service);
  } catch (const std::exception& error) {
    throw StartupError(error.what());
  }
}

bool idle(const engine::EngineStatus& status, const Doors& doors) {
  return status.running_sequences == 0 && status.waiting_sequences == 0 &&
         doors.live_requests() == 0;
}

/// Lets live requests finish. The doors stay open meanwhile, so that /readyz can say 503 and new
/// requests learn why.
void drain(EngineStack& stack, server::GenerateService& service, Doors& doors,
           std::uint32_t grace_ms) {
  const TimePoint deadline = stack.clock.now() + std::chrono::milliseconds(grace_ms);
  service.set_readiness(server::Readiness::kDraining);
  doors.publish_readiness();
  stack.engine->drain(deadline);
  while (!idle(service.status(), doors) && stack.clock.now() < deadline + kLastEvents) {
    std::this_thread::sleep_for(kDrainPoll);
  }
}

void check_ports(const config::LoadedOptions& loaded) {
  const config::ServeOptions& options = loaded.options;
  const auto check = [&](std::uint32_t port, const char* option) {
    check_listen({.host = options.host,
                  .host_origin = config::origin_of(loaded, "host"),
                  .port = port,
                  .port_origin = config::origin_of(loaded, option)});
  };
  check(options.http_port, "http-port");
#ifdef KVASIR_WITH_GRPC
  check(options.grpc_port, "grpc-port");
  if (options.http_port != 0 && options.http_port == options.grpc_port) {
    throw StartupError(config::origin_of(loaded, "grpc-port") + ": " +
                       std::to_string(options.grpc_port) + " is the HTTP port already (" +
                       config::origin_of(loaded, "http-port") + "); allowed: another port, or 0");
  }
#endif
}

int serve(const config::LoadedOptions& loaded) {
  const config::ServeOptions& options = loaded.options;
  start_logging(options.log_level, options.log_format);
  SignalWatch signals;  // before any other thread starts
  check_ports(loaded);
  const NamedPath ready_path{options.ready_file, config::origin_of(loaded, "ready-file")};
  if (!ready_path.path.empty()) check_ready_file(ready_path);
  const auto stack = build_engine_stack(loaded);
  signals.loaded();
  for (const std::string& warning : loaded.warnings) spdlog::warn(warning);
  log_engine_stack(*stack, options);

  server::GenerateService service(stack->info, *stack->engine, *stack->model->text.tokenizer,
                                  stack->model->chat_template.get(), stack->clock,
                                  request_limits(options));
  const auto doors = open_doors(options, service);
  engine::EngineThread engine_thread(*stack->engine);
  service.set_readiness(server::Readiness::kReady);
  doors->publish_readiness();
  spdlog::info("ready: http://{}:{} and gRPC on port {}, model {}", options.host,
               doors->http_port(), doors->grpc_port(), stack->info.served_name);
  std::optional<ReadyFile> ready_file;
  if (!options.ready_file.empty()) {
    ready_file.emplace(ready_path, doors->http_port(), doors->grpc_port(), getpid());
  }

  const int signal = signals.wait();
  spdlog::info("signal {}: draining for at most {} ms", signal, options.shutdown_grace_ms);
  ready_file.reset();
  drain(*stack, service, *doors, options.shutdown_grace_ms);
  doors->stop();
  stack->engine->stop();
  engine_thread.join();
  spdlog::info("stopped");
  return 0;
}

}  // namespace

Command add_serve(CLI::App& app) {
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP and gRPC until SIGTERM");
  const auto sources = config::add_option_flags(*command, config::kServe);
  return [sources] { return serve(config::load_options(*sources)); };
}

}  // namespace kvasir::cli
