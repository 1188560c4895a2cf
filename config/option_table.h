// One row for each option: where it is kept, how it is written and what is allowed. Flags, --help,
// the TOML file, the environment and docs/CONFIG.md are all made from these rows, so that they
// cannot differ. Sources are load.h's.
#pragma once

#include "config/options.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvasir::config {

enum class OptionKind : std::uint8_t {
  kText,    // not empty
  kPath,    // not empty, no NUL
  kNumber,  // whole, in [min, max]
  kShare,   // a decimal fraction, 0 to 1
  kBytes,   // as kNumber, with KiB, MiB or GiB
  kSwitch,  // true or false
  kChoice,  // one of `choices`
};

/// Which subcommands take the option as a flag. File and environment are read by all of them.
enum OptionUsers : unsigned {
  kServe = 1U,
  kGenerate = 2U,
  kTokenize = 4U,
  kHealthcheck = 8U,
  kBench = 16U,
};

using OptionMember =
    std::variant<std::string ServeOptions::*, std::uint32_t ServeOptions::*,
                 std::uint64_t ServeOptions::*, double ServeOptions::*, bool ServeOptions::*>;

struct OptionRow {
  std::string_view name;  // "kv-budget": --kv-budget, KVASIR_KV_BUDGET, kv_budget in the file
  OptionKind kind = OptionKind::kText;
  OptionMember member = &ServeOptions::model_path;
  unsigned users = kServe;
  std::string_view unit = {};           // of numbers: "tokens", "ms", ...; may be empty
  std::string_view help = {};           // one sentence
  std::uint64_t min = 0, max = 0;       // kNumber and kBytes
  std::string_view word_for_zero = {};  // a word that stands for 0 where 0 itself is out of range
  std::vector<std::string_view> choices = {};  // of a kChoice
};

[[nodiscard]] std::span<const OptionRow> option_table();

[[nodiscard]] std::string flag_name(const OptionRow& row);         // "--kv-budget"
[[nodiscard]] std::string environment_name(const OptionRow& row);  // "KVASIR_KV_BUDGET"
[[nodiscard]] std::string file_key(const OptionRow& row);          // "kv_budget"

/// The value that `options` has, as a user would write it.
[[nodiscard]] std::string value_text(const OptionRow& row, const ServeOptions& options);
/// What is allowed, for errors and help: "a whole number from 1 to 1024, or auto".
[[nodiscard]] std::string allowed_text(const OptionRow& row);
/// What stands for a value in --help: "N", "SIZE", "true|false".
[[nodiscard]] std::string placeholder(const OptionRow& row);
/// The text of docs/CONFIG.md.
[[nodiscard]] std::string config_document();

}  // namespace kvasir::config
