// Prints docs/CONFIG.md; a test compares the two.
#include "cli/commands.h"
#include "config/option_table.h"

#include <CLI/CLI.hpp>

#include <iostream>

namespace kvasir::cli {

Command add_config_doc(CLI::App& app) {
  app.add_subcommand("config-doc", "Print the table of all options")->group("");
  return [] {
    std::cout << config::config_document();
    return 0;
  };
}

}  // namespace kvasir::cli
