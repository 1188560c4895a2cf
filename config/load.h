// Reads the options from defaults, a TOML file, the environment and flags, in rising order of
// precedence, and says of a bad value where it came from. Which flags a subcommand has is
// cli_flags.h's; what options mean is their users'.
#pragma once

#include "config/options.h"

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvasir::config {

/// A bad option. The message is one line that names the option, its source and what is allowed.
class ConfigError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using NamedValues = std::vector<std::pair<std::string, std::string>>;

struct ConfigSources {
  std::optional<std::string> config_path;  // --config; KVASIR_CONFIG counts where it is absent
  NamedValues environment;                 // all variables of the process
  NamedValues flags;                       // option name ("kv-budget") and value
};

struct LoadedOptions {
  ServeOptions options;
  /// By option name ("context"), for options that are not at their default: the place of the value
  /// that counts, as "k.toml:3: context", "environment: KVASIR_CONTEXT" or "command line:
  /// --context".
  std::map<std::string, std::string, std::less<>> origins;
  std::vector<std::string> warnings;  // one line each
};

/// Where the value of an option came from, to start an error with; "default of --context" when no
/// source has it.
[[nodiscard]] std::string origin_of(const LoadedOptions& loaded, std::string_view name);

/// Throws ConfigError.
[[nodiscard]] LoadedOptions load_options(const ConfigSources& sources);

/// The variables of this process.
[[nodiscard]] NamedValues process_environment();

/// `text` in double quotes, at most 64 bytes of it, control characters and bytes past ASCII as
/// \xNN: safe in one log line.
[[nodiscard]] std::string quoted(const std::string& text);

}  // namespace kvasir::config
