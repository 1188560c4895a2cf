// The subcommands, one file each. Every one adds itself to the CLI11 application and returns what
// runs it after the command line was parsed; the result is the exit code. Failures at start are
// exceptions that end in main.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace kvasir::cli {

using Command = std::function<int()>;

[[nodiscard]] Command add_serve(CLI::App& app);
[[nodiscard]] Command add_generate(CLI::App& app);
[[nodiscard]] Command add_tokenize(CLI::App& app);
[[nodiscard]] Command add_bench(CLI::App& app);
[[nodiscard]] Command add_inspect(CLI::App& app);
[[nodiscard]] Command add_plan(CLI::App& app);
[[nodiscard]] Command add_healthcheck(CLI::App& app);
[[nodiscard]] Command add_config_doc(CLI::App& app);

}  // namespace kvasir::cli
