// Sources to options. Every value, wherever it came from, goes through set_option(), so that all
// sources obey one set of rules.
#include "config/load.h"

#include "config/option_table.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string_view>
#include <system_error>
#include <unistd.h>

extern char** environ;

namespace kvasir::config {
namespace {

constexpr std::string_view kEnvironmentPrefix = "KVASIR_";
constexpr std::string_view kConfigVariable = "KVASIR_CONFIG";
constexpr std::uintmax_t kMaxFileBytes = 1U << 20U;
/// Variables of tests and tools that are not options and not worth a warning.
constexpr std::string_view kOtherPrefixes[] = {"KVASIR_TEST_", "KVASIR_SIM_", "KVASIR_UPDATE_"};

struct Value {
  std::string text;
  std::string source;  // "config.toml:3: kv_budget", "environment: KVASIR_THREADS", "command line:
                       // --threads"
};

[[noreturn]] void refuse(const OptionRow& row, const Value& value, std::string_view what) {
  throw ConfigError(value.source + ": " + quoted(value.text) + " " + std::string(what) +
                    "; allowed: " + allowed_text(row));
}

const OptionRow* find_row(auto name_of, std::string_view name) {
  const auto table = option_table();
  const auto it = std::find_if(table.begin(), table.end(),
                               [&](const OptionRow& r) { return name_of(r) == name; });
  return it == table.end() ? nullptr : &*it;
}

/// Digits only; absent for anything else. Saturates at 2^64 - 1, which no bound reaches.
std::optional<std::uint64_t> parse_digits(std::string_view text) {
  if (text.empty() ||
      !std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc::result_out_of_range ? std::numeric_limits<std::uint64_t>::max()
                                                 : number;
}

std::uint64_t parse_number(const OptionRow& row, const Value& value) {
  if (!row.word_for_zero.empty() && value.text == row.word_for_zero) return 0;
  const bool negative = value.text.size() > 1 && value.text[0] == '-';
  const auto number = parse_digits(negative ? std::string_view(value.text).substr(1) : value.text);
  if (!number) refuse(row, value, "is not a whole number");
  if (negative || *number < row.min || *number > row.max) refuse(row, value, "is out of range");
  return *number;
}

std::uint64_t parse_bytes(const OptionRow& row, const Value& value) {
  constexpr struct {
    std::string_view suffix;
    unsigned shift;
  } kUnits[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
  std::string_view digits = value.text;
  unsigned shift = 0;
  for (const auto& unit : kUnits) {
    if (digits.ends_with(unit.suffix)) {
      digits.remove_suffix(unit.suffix.size());
      shift = unit.shift;
      break;
    }
  }
  const bool negative = digits.size() > 1 && digits[0] == '-';
  const auto number = parse_digits(negative ? digits.substr(1) : digits);
  if (!number) refuse(row, value, "is not a size");
  // The shift cannot overflow: max is checked on the unshifted number first.
  if (negative || *number > row.max >> shift || (*number << shift) < row.min) {
    refuse(row, value, "is out of range");
  }
  return *number << shift;
}

double parse_share(const OptionRow& row, const Value& value) {
  const char* const end = value.text.data() + value.text.size();
  double share = 0.0;
  const auto [stopped, error] = std::from_chars(value.text.data(), end, share);
  const bool is_number =
      stopped == end && (error == std::errc{} || error == std::errc::result_out_of_range);
  if (!is_number || std::isnan(share)) refuse(row, value, "is not a number");
  if (error != std::errc{} || share < 0.0 || share > 1.0) refuse(row, value, "is out of range");
  return share == 0.0 ? 0.0 : share;  // "-0" is 0
}

bool parse_switch(const OptionRow& row, const Value& value) {
  if (value.text == "true") return true;
  if (value.text == "false") return false;
  refuse(row, value, "is not a switch");
}

std::string parse_text(const OptionRow& row, const Value& value) {
  if (value.text.find('\0') != std::string::npos) refuse(row, value, "has a NUL byte");
  if (value.text.empty()) refuse(row, value, "is empty");
  if (row.kind == OptionKind::kChoice &&
      std::find(row.choices.begin(), row.choices.end(), value.text) == row.choices.end()) {
    refuse(row, value, "is not allowed");
  }
  return value.text;
}

void set_option(const OptionRow& row, const Value& value, LoadedOptions& loaded) {
  ServeOptions& options = loaded.options;
  std::visit(
      [&](auto member) {
        using T = std::decay_t<decltype(options.*member)>;
        if constexpr (std::is_same_v<T, std::string>) {
          options.*member = parse_text(row, value);
        } else if constexpr (std::is_same_v<T, bool>) {
          options.*member = parse_switch(row, value);
        } else if constexpr (std::is_same_v<T, double>) {
          options.*member = parse_share(row, value);
        } else if (row.kind == OptionKind::kBytes) {
          options.*member = static_cast<T>(parse_bytes(row, value));
        } else {
          options.*member = static_cast<T>(parse_number(row, value));
        }
      },
      row.member);
  loaded.origins.insert_or_assign(std::string(row.name), value.source);
}

std::string read_config_file(const std::string& path, const std::string& named_by) {
  const std::string where = named_by + ": " + quoted(path);
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (path.empty() || path.find('\0') != std::string::npos || !std::filesystem::exists(status)) {
    throw ConfigError(where + " does not exist; allowed: a TOML file");
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw ConfigError(where + " is not a regular file; allowed: a TOML file");
  }
  if (std::filesystem::file_size(path, error) > kMaxFileBytes || error) {
    throw ConfigError(where + " is too large; allowed: a TOML file of at most 1MiB");
  }
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in) throw ConfigError(where + " cannot be read; allowed: a readable TOML file");
  return text;
}

toml::table parse_toml(const std::string& text, const std::string& path) {
  try {
    return toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    std::string what(error.description());
    std::replace_if(
        what.begin(), what.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
    throw ConfigError(path + ":" + std::to_string(error.source().begin.line) + ": " + what);
  }
}

std::string toml_float_text(double number) {
  std::array<char, 64> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr};
}

/// The text of a TOML value of the type that the option wants.
std::string toml_text(const OptionRow& row, const toml::node& node, const std::string& source) {
  const bool wants_number = row.kind == OptionKind::kNumber || row.kind == OptionKind::kBytes;
  const bool takes_integer = wants_number || row.kind == OptionKind::kShare;
  if (takes_integer && node.is_integer()) return std::to_string(node.as_integer()->get());
  if (row.kind == OptionKind::kShare && node.is_floating_point()) {
    return toml_float_text(node.as_floating_point()->get());
  }
  if (row.kind == OptionKind::kSwitch && node.is_boolean()) {
    return node.as_boolean()->get() ? "true" : "false";
  }
  const bool wants_string = row.kind == OptionKind::kText || row.kind == OptionKind::kPath ||
                            row.kind == OptionKind::kChoice || row.kind == OptionKind::kBytes;
  if (node.is_string()) {
    const std::string text = node.as_string()->get();
    if (wants_string || (!row.word_for_zero.empty() && text == row.word_for_zero)) return text;
  }
  std::string type;
  switch (node.type()) {
    case toml::node_type::string:
      type = "a string";
      break;
    case toml::node_type::integer:
      type = "an integer";
      break;
    case toml::node_type::floating_point:
      type = "a float";
      break;
    case toml::node_type::boolean:
      type = "a boolean";
      break;
    case toml::node_type::array:
      type = "an array";
      break;
    case toml::node_type::table:
      type = "a table";
      break;
    default:
      type = "a date or time";
      break;
  }
  throw ConfigError(source + ": is " + type + "; allowed: " + allowed_text(row));
}

void apply_file(const std::string& path, const std::string& named_by, LoadedOptions& loaded) {
  const toml::table table = parse_toml(read_config_file(path, named_by), path);
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const std::string place = path + ":" + std::to_string(node.source().begin.line) + ": ";
    const OptionRow* row = find_row(file_key, name);
    if (row == nullptr)
      throw ConfigError(place + "unknown key " + quoted(name) +
                        "; allowed: the keys of docs/CONFIG.md");
    const std::string source = place + name;
    set_option(*row, Value{toml_text(*row, node, source), source}, loaded);
  }
}

void apply_environment(const NamedValues& environment, LoadedOptions& loaded) {
  for (const auto& [name, text] : environment) {
    if (!name.starts_with(kEnvironmentPrefix) || name == kConfigVariable) continue;
    if (const OptionRow* row = find_row(environment_name, name)) {
      set_option(*row, Value{text, "environment: " + name}, loaded);
      continue;
    }
    const bool other =
        std::any_of(std::begin(kOtherPrefixes), std::end(kOtherPrefixes),
                    [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (!other)
      loaded.warnings.push_back("environment: " + name + " is no option of kvasir and is ignored");
  }
}

}  // namespace

LoadedOptions load_options(const ConfigSources& sources) {
  LoadedOptions loaded;
  std::optional<std::string> path = sources.config_path;
  std::string named_by = "command line: --config";
  if (!path) {
    for (const auto& [name, text] : sources.environment) {
      if (name != kConfigVariable) continue;
      path = text;
      named_by = "environment: KVASIR_CONFIG";
    }
  }
  if (path) apply_file(*path, named_by, loaded);
  apply_environment(sources.environment, loaded);
  for (const auto& [name, text] : sources.flags) {
    const OptionRow* row = find_row([](const OptionRow& r) { return r.name; }, name);
    if (row == nullptr) throw ConfigError("command line: unknown option " + quoted(name));
    set_option(*row, Value{text, "command line: " + flag_name(*row)}, loaded);
  }
  return loaded;
}

std::string origin_of(const LoadedOptions& loaded, std::string_view name) {
  const auto found = loaded.origins.find(name);
  return found == loaded.origins.end() ? "default of --" + std::string(name) : found->second;
}

NamedValues process_environment() {
  NamedValues variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

std::string quoted(const std::string& text) {
  constexpr std::size_t kMaxBytes = 64;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte > 0x7e) {
      out += {'\\', 'x', kHex[byte >> 4U], kHex[byte & 15U]};
    } else {
      out += c;
    }
  }
  return out + (text.size() > kMaxBytes ? "...\"" : "\"");
}

}  // namespace kvasir::config
