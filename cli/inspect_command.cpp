// The command line of `kvasir inspect`; what it prints is inspect.cpp's.
#include "cli/commands.h"
#include "cli/inspect.h"
#include "cli/load_model.h"

#include <CLI/CLI.hpp>

#include <memory>
#include <string>

namespace kvasir::cli {

Command add_inspect(CLI::App& app) {
  struct Flags {
    std::string model = "default";
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "inspect",
      "Say what is in a model file, what a token costs in the KV cache and what is supported");
  command->add_option("model", flags->model, "GGUF file, or default")->capture_default_str();
  command->add_flag("--json", flags->json, "Print one JSON object");
  return [flags] {
    return run_inspect(resolve_model_path({flags->model, "command line: model"}).path, flags->json);
  };
}

}  // namespace kvasir::cli
