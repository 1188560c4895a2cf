// The option table as flags of one CLI11 subcommand. Values are only collected here; load.h judges
// them.
#pragma once

#include "config/load.h"

#include <memory>
#include <string>

namespace CLI {
class App;
}

namespace kvasir::config {

/// Adds --config and a flag for each option that `users` (see OptionUsers) names. The returned
/// sources have the flags filled in when the command line was parsed, and the environment of this
/// process.
[[nodiscard]] std::shared_ptr<ConfigSources> add_option_flags(CLI::App& command, unsigned users);

}  // namespace kvasir::config
