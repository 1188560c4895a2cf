// CLI11 is asked for names and texts only, so that a bad flag gets the same message as a bad line
// in the file.
#include "config/cli_flags.h"

#include "config/option_table.h"

#include <CLI/CLI.hpp>

namespace kvasir::config {
namespace {

std::string flag_help(const OptionRow& row, const ServeOptions& defaults) {
  std::string help(row.help);
  if (!help.empty() && help.back() == '.') help.pop_back();
  const std::string value = value_text(row, defaults);
  return help + " [" + (value.empty() ? "unset" : value) + "] (" + allowed_text(row) + "; " +
         environment_name(row) + ")";
}

}  // namespace

std::shared_ptr<ConfigSources> add_option_flags(CLI::App& command, unsigned users) {
  auto sources = std::make_shared<ConfigSources>();
  sources->environment = process_environment();
  const ServeOptions defaults;
  command
      .add_option_function<std::string>(
          "--config", [sources](const std::string& path) { sources->config_path = path; },
          "TOML file with options (KVASIR_CONFIG)")
      ->type_name("FILE")
      ->take_last();
  for (const OptionRow& row : option_table()) {
    if ((row.users & users) == 0) continue;
    command
        .add_option_function<std::string>(
            flag_name(row),
            [sources, &row, name = std::string(row.name)](const std::string& text) {
              // CLI11 takes the next flag for the value of one that has none.
              if (text.starts_with("--")) {
                throw ConfigError("command line: " + flag_name(row) + ": has no value before " +
                                  quoted(text) + "; allowed: " + allowed_text(row));
              }
              sources->flags.emplace_back(name, text);
            },
            flag_help(row, defaults))
        ->type_name(placeholder(row))
        ->take_last();
  }
  return sources;
}

}  // namespace kvasir::config
