// The command line of `kvasir plan`; what it does is plan.cpp's.
#include "cli/commands.h"
#include "cli/plan.h"
#include "cli/startup_error.h"
#include "config/load.h"
#include "server/field_table.h"
#include "server/field_text.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <iostream>
#include <map>
#include <memory>
#include <string>

namespace kvasir::cli {
namespace {

using server::FieldKind;
using server::FieldRow;

struct Flags {
  std::map<std::string_view, std::string> given;  // by field
  bool json = false;
};

/// Meaning, range and default of the field's row, in the words of the command line.
std::string help_text(const FieldRow& row) {
  if (row.name == "model") return "GGUF file, or default: a model of its shape and weights";
  if (row.name == "budget_bytes")
    return "Bytes to fit sequences into, or a number with KiB, MiB, GiB or TiB behind. Default: "
           "none";
  std::string text(row.meaning);
  text += " Allowed: " + server::allowed_text(row, {}) + ".";
  text += " Default: " + server::default_text(row) + ".";
  const auto replace = [&text](std::string_view from, std::string_view to) {
    const std::size_t at = text.find(from);
    if (at != std::string::npos) text.replace(at, from.size(), to);
  };
  replace("the numbers given, or the served model", "the numbers given, or the model file");
  replace("the served model's; f16 with a preset or numbers", "f16");
  replace("the preset's or the served model's", "the preset's or the file's");
  return with_plan_options(text);
}

/// Beside the field's own name.
std::string option_names(const FieldRow& row) {
  static const std::map<std::string_view, std::string> shorter = {
      {"context_tokens", ",--context"},
      {"window_tokens", ",--window"},
      {"budget_bytes", ",--budget"},
  };
  const auto found = shorter.find(row.name);
  return plan_option(row.name) + (found == shorter.end() ? "" : found->second);
}

std::int64_t integer_of(const FieldRow& row, const std::string& text) {
  if (row.name == "budget_bytes") return plan_bytes(text);
  std::int64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    throw StartupError("command line: " + plan_option(row.name) + " must be " +
                       server::allowed_text(row, {}) + ", not " + config::quoted(text));
  }
  return number;
}

/// The typed text into the row's member: one function for each type that a member has.
struct FieldSetter {
  const FieldRow& row;
  const std::string& text;

  void set(std::optional<std::string>& out) const { out = text; }
  void set(std::optional<std::int64_t>& out) const { out = integer_of(row, text); }
  void set(std::optional<bool>& out) const { out = text == "true"; }
};

server::PlanFields fields_of(const Flags& flags) {
  server::PlanFields fields;
  for (const FieldRow& row : server::field_table()) {
    const auto given = flags.given.find(row.name);
    if ((row.users & server::kOfPlan) == 0 || given == flags.given.end()) continue;
    const FieldSetter setter{row, given->second};
    server::visit_member(row, fields, [&setter](auto& member) { setter.set(member); });
  }
  return fields;
}

}  // namespace

Command add_plan(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "plan",
      "Calculate what a KV cache costs and saves, for a published model, a file or numbers");
  for (const FieldRow& row : server::field_table()) {
    if ((row.users & server::kOfPlan) == 0) continue;
    const std::string_view name = row.name;
    if (row.kind == FieldKind::kSwitch) {
      command->add_flag_callback(
          "--no-grouping", [flags, name] { flags->given[name] = "false"; },
          "Count a KV head for each query head, as without grouped queries");
      continue;
    }
    command
        ->add_option_function<std::string>(
            option_names(row),
            [flags, name](const std::string& text) { flags->given[name] = text; }, help_text(row))
        ->type_name(row.kind == FieldKind::kInteger ? "NUMBER" : "WORD")
        ->take_last();
  }
  command->add_flag("--json", flags->json, "Print one JSON object, as POST /v1/kv/plan answers");
  return [flags] {
    run_plan(fields_of(*flags), flags->json, std::cout);
    return 0;
  };
}

}  // namespace kvasir::cli
