// Chooses the subcommand and turns what went wrong at start into one line on stderr and exit
// code 2. What the subcommands do is in their own files.
#include "cli/commands.h"
#include "cli/logging.h"
#include "cli/standard_streams.h"
#include "cli/startup_error.h"
#include "config/load.h"
#include "config/option_table.h"

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

/// What CLI11 says of a command line, in the words of the other refusals.
std::string command_line_text(const CLI::ParseError& error, const CLI::App& app,
                              const std::string& first_argument) {
  const std::string said = error.what();
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !first_argument.empty()) {
    std::string names;
    for (const CLI::App* command : app.get_subcommands(
             [](const CLI::App* candidate) { return !candidate->get_group().empty(); })) {
      names += (names.empty() ? "" : ", ") + command->get_name();
    }
    return kvasir::config::quoted(first_argument) + " is no command; allowed: " + names;
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr) return said;
  const std::string flag = said.substr(0, said.find(':'));
  for (const kvasir::config::OptionRow& row : kvasir::config::option_table()) {
    if (kvasir::config::flag_name(row) == flag) {
      return flag + ": has no value; allowed: " + kvasir::config::allowed_text(row);
    }
  }
  return flag.starts_with("--") ? flag + ": has no value" : said;
}

int run(int argc, char** argv) {
  CLI::App app("kvasir serves a language model from CPU cores over HTTP and gRPC.", "kvasir");
  app.set_version_flag("--version", KVASIR_VERSION);
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, kvasir::cli::Command>> commands;
  for (const auto add :
       {kvasir::cli::add_serve, kvasir::cli::add_generate, kvasir::cli::add_tokenize,
        kvasir::cli::add_bench, kvasir::cli::add_inspect, kvasir::cli::add_plan,
        kvasir::cli::add_healthcheck, kvasir::cli::add_config_doc}) {
    kvasir::cli::Command command = add(app);
    commands.emplace_back(app.get_subcommands(nullptr).back(), std::move(command));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      app.exit(error);
      kvasir::cli::finish_output();
      return 0;
    }
    return say(kExitRejected,
               "command line: " + command_line_text(error, app, argc > 1 ? argv[1] : ""));
  }
  for (const auto& [subcommand, command] : commands) {
    if (!subcommand->parsed()) continue;
    const int exit_code = command();
    if (exit_code == 0) kvasir::cli::finish_output();
    return exit_code;
  }
  return kExitRejected;
}

}  // namespace

int main(int argc, char** argv) {
  kvasir::cli::open_standard_streams();
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
