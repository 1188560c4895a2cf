// `kvasir serve`: loads, builds, opens both doors, runs until a signal and drains. Composition
// only: every part is made elsewhere and knows nothing of the others' lifetimes.
#include "cli/commands.h"
#include "cli/doors.h"
#include "cli/engine_stack.h"
#include "cli/file_limits.h"
#include "cli/listen_check.h"
#include "cli/logging.h"
#include "cli/ready_file.h"
#include "cli/request_limits.h"
#include "cli/secrets.h"
#include "cli/signals.h"
#include "cli/startup_error.h"
#include "config/cli_flags.h"
#include "config/option_table.h"
#include "engine/engine_thread.h"
#include "server/generate_service.h"
#include "server/unix_socket.h"

#include <CLI/CLI.hpp>
#include <spdlog/spdlog.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace kvasir::cli {
namespace {

/// Time between two looks at whether a drain is over.
constexpr std::chrono::milliseconds kDrainPoll{20};
/// After the grace time the engine has ended every sequence; doors get this long to send the last
/// events.
constexpr std::chrono::seconds kLastEvents{2};

bool idle(const engine::EngineStatus& status, const Doors& doors) {
  return status.running_sequences == 0 && status.waiting_sequences == 0 &&
         doors.live_requests() == 0;
}

/// Lets live requests finish; at the deadline the engine ends what is left with an error. Readiness
/// turns first, so that nobody finds a door closed who was not told.
void drain(EngineStack& stack, server::GenerateService& service, Doors& doors,
           std::uint32_t grace_ms) {
  const TimePoint deadline = stack.clock.now() + std::chrono::milliseconds(grace_ms);
  service.set_readiness(server::Readiness::kDraining);
  doors.publish_readiness();
  stack.engine->drain(deadline);
  doors.begin_drain();
  while (!idle(service.status(), doors) && stack.clock.now() < deadline + kLastEvents) {
    std::this_thread::sleep_for(kDrainPoll);
  }
}

void check_metrics_listener(const config::LoadedOptions& loaded) {
  const config::ServeOptions& options = loaded.options;
  if (options.metrics_port == 0) {
    if (options.metrics_host.empty()) return;
    throw StartupError(config::origin_of(loaded, "metrics-host") + ": " +
                       config::quoted(options.metrics_host) +
                       " is set without --metrics-port; allowed: both, or neither");
  }
  const bool own_host = !options.metrics_host.empty();
  check_listen({.host = own_host ? options.metrics_host : options.host,
                .host_origin = config::origin_of(loaded, own_host ? "metrics-host" : "host"),
                .port = options.metrics_port,
                .port_origin = config::origin_of(loaded, "metrics-port")});
  for (const auto& [port, option] :
       {std::pair{options.http_port, "http-port"}, std::pair{options.grpc_port, "grpc-port"}}) {
    if (port != options.metrics_port) continue;
    throw StartupError(config::origin_of(loaded, "metrics-port") + ": " + std::to_string(port) +
                       " is another door's port already (" + config::origin_of(loaded, option) +
                       "); allowed: another port");
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
  check_metrics_listener(loaded);
#ifdef KVASIR_WITH_GRPC
  check(options.grpc_port, "grpc-port");
  if (options.http_port != 0 && options.http_port == options.grpc_port) {
    throw StartupError(config::origin_of(loaded, "grpc-port") + ": " +
                       std::to_string(options.grpc_port) + " is the HTTP port already (" +
                       config::origin_of(loaded, "http-port") + "); allowed: another port, or 0");
  }
#endif
}

/// As with ports: a socket that cannot be had is told before a large model is loaded.
void check_sockets(const config::LoadedOptions& loaded) {
  const config::ServeOptions& options = loaded.options;
  const auto check = [&](const std::string& path, const char* option) {
    if (path.empty()) return;
    const std::string origin = config::origin_of(loaded, option);
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    std::error_code ignored;
    if (!folder.empty() && !std::filesystem::is_directory(folder, ignored)) {
      throw StartupError(origin + ": " + config::quoted(path) +
                         " is in no folder; allowed: a socket in a folder that can be written");
    }
    value_or_throw(server::clear_socket_path(path), origin);
  };
  check(options.http_socket, "http-socket");
  check(options.grpc_socket, "grpc-socket");
  if (!options.http_socket.empty() && options.http_socket == options.grpc_socket) {
    throw StartupError(config::origin_of(loaded, "grpc-socket") + ": " +
                       config::quoted(options.grpc_socket) + " is the HTTP socket already (" +
                       config::origin_of(loaded, "http-socket") + "); allowed: another path");
  }
}

/// Beside connections: files of the daemon's own, and gRPC's connections.
constexpr std::uint64_t kOtherFiles = 256;

void raise_files(const config::ServeOptions& options) {
  const std::uint64_t files = raise_file_limit();
  if (files < options.max_connections + kOtherFiles) {
    spdlog::warn("only {} files may be open at once: too few for {} connections (ulimit -n)", files,
                 options.max_connections);
  }
}

int serve(const config::LoadedOptions& loaded) {
  const config::ServeOptions& options = loaded.options;
  start_logging(options.log_level, options.log_format);
  SignalWatch signals;  // before any other thread starts
  check_ports(loaded);
  check_sockets(loaded);
  const NamedPath ready_path{options.ready_file, config::origin_of(loaded, "ready-file")};
  if (!ready_path.path.empty()) check_ready_file(ready_path);
  Secrets secrets(loaded);
  const auto stack = build_engine_stack(loaded);
  signals.loaded();
  for (const std::string& warning : loaded.warnings) spdlog::warn(warning);
  if (const std::string warning = open_host_warning(options); !warning.empty())
    spdlog::warn(warning);
  raise_files(options);
  log_engine_stack(*stack, options);

  server::GenerateService service(
      stack->info, *stack->engine, *stack->model->text.tokenizer, stack->model->chat_template.get(),
      stack->clock, request_limits(options),
      {.kv_receipt = options.kv_receipt, .audit_strict = options.kv_audit_strict});
  Doors doors(options, *stack, secrets, service);
  // Health watchers are told at once; probes ask for themselves.
  stack->on_audit_finding = [&doors] { doors.publish_readiness(); };
  engine::EngineThread engine_thread(*stack->engine);
  service.set_readiness(server::Readiness::kReady);
  doors.publish_readiness();
  spdlog::info("ready: {}://{}:{} and gRPC on port {}, model {}",
               secrets.tls() == nullptr ? "http" : "https", options.host, doors.http_port(),
               doors.grpc_port(), stack->info.served_name);
  std::optional<ReadyFile> ready_file;
  if (!options.ready_file.empty()) {
    ready_file.emplace(ready_path, doors.http_port(), doors.grpc_port(), getpid());
  }

  int signal = signals.wait();
  for (; signal == SIGHUP; signal = signals.wait()) secrets.reload();
  spdlog::info("signal {}: draining for at most {} ms", signal, options.shutdown_grace_ms);
  ready_file.reset();
  drain(*stack, service, doors, options.shutdown_grace_ms);
  doors.stop();
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
