// Chooses the subcommand and turns what went wrong at start into one line on stderr and exit
// code 2. What the subcommands do is in their own files.
#include "cli/commands.h"
#include "cli/logging.h"
#include "cli/startup_error.h"
#include "config/load.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kExitFailed = 1;    // it ran and did not succeed
constexpr int kExitRejected = 2;  // the command line, an option, a file or a limit is at fault

int say(int exit_code, const std::string& message) {
  std::fprintf(stderr, "kvasir: %s\n", kvasir::cli::line_escaped(message).c_str());
  return exit_code;
}

int run(int argc, char** argv) {
  CLI::App app("kvasir serves a language model from CPU cores over HTTP and gRPC.", "kvasir");
  app.set_version_flag("--version", KVASIR_VERSION);
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, kvasir::cli::Command>> commands;
  for (const auto add :
       {kvasir::cli::add_serve, kvasir::cli::add_generate, kvasir::cli::add_tokenize,
        kvasir::cli::add_inspect, kvasir::cli::add_healthcheck, kvasir::cli::add_config_doc}) {
    kvasir::cli::Command command = add(app);
    commands.emplace_back(app.get_subcommands(nullptr).back(), std::move(command));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return say(kExitRejected, std::string("command line: ") + error.what());
  }
  for (const auto& [subcommand, command] : commands) {
    if (subcommand->parsed()) return command();
  }
  return kExitRejected;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const kvasir::config::ConfigError& error) {
    return say(kExitRejected, error.what());
  } catch (const kvasir::cli::StartupError& error) {
    return say(kExitRejected, error.what());
  } catch (const std::exception& error) {
    return say(kExitFailed, error.what());
  }
}
