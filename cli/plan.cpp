#include "cli/plan.h"

#include "cli/load_model.h"
#include "cli/plan_report.h"
#include "cli/startup_error.h"
#include "config/load.h"
#include "runtime/model/gguf_reader.h"
#include "runtime/model/model_config.h"
#include "runtime/model/printable.h"
#include "server/field_table.h"
#include "server/kv_plan.h"
#include "server/kv_plan_json.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <ostream>
#include <string>
#include <utility>

namespace kvasir::cli {
namespace {

constexpr const char* kOrigin = "command line: --model";
constexpr std::string_view kBeside = "beside ";

bool is_of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool is_field(std::string_view word) {
  return std::ranges::any_of(server::field_table(), [word](const server::FieldRow& row) {
    return (row.users & server::kOfPlan) != 0 && row.name == word;
  });
}

void check_bound(std::uint64_t value, std::int64_t most, const char* what) {
  if (value >= 1 && value <= static_cast<std::uint64_t>(most)) return;
  throw StartupError(std::string(kOrigin) + ": the file's model has " + std::to_string(value) +
                     " " + what + "; allowed: 1 to " + std::to_string(most));
}

/// The shape, the context and the tensor bytes of a model file; no weight is read.
server::PlannedModel model_of_file(const std::string& option) {
  const NamedPath named = resolve_model_path({option, kOrigin});
  const auto file = value_or_throw(runtime::GgufFile::open(named.path), kOrigin);
  const runtime::ModelConfig config = value_or_throw(runtime::read_model_config(*file), kOrigin);
  // The other numbers are bounded where the file is read.
  check_bound(config.context_tokens, kvcache::kMaxPlanContext, "tokens of context");
  server::PlannedModel planned;
  planned.model.name = runtime::printable(config.name);
  planned.model.groups = config.kv_geometry(kvcache::KvType::kF16, kvcache::kBlockTokens).groups;
  planned.model.query_heads = config.num_heads;
  planned.model.context_tokens = config.context_tokens;
  std::uint64_t weights_bytes = 0;
  for (const runtime::GgufTensor& tensor : file->tensors()) weights_bytes += tensor.data.size();
  if (weights_bytes > 0) {
    planned.model.weights_bytes = weights_bytes;
    planned.model.weights_from = "tensors of the model file";
  }
  return planned;
}

template <typename T>
T planned_or_throw(Result<T> result) {
  if (!result) throw StartupError("command line: " + with_plan_options(result.error().message));
  return std::move(*result);
}

}  // namespace

std::string plan_option(std::string_view field) {
  std::string option = "--";
  option += field;
  std::replace(option.begin(), option.end(), '_', '-');
  return option;
}

std::string with_plan_options(const std::string& text) {
  std::string out;
  bool is_quoted = false;  // what was typed stays as it was typed
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && is_of_word(text[end])) ++end;
    const std::string word = text.substr(at, std::max<std::size_t>(end - at, 1));
    if (word == "\"") is_quoted = !is_quoted;
    const bool is_named = at == 0 || word.find('_') != std::string::npos || out.ends_with(kBeside);
    out += !is_quoted && is_named && is_field(word) ? plan_option(word) : word;
    at += word.size();
  }
  return out;
}

std::int64_t plan_bytes(const std::string& text) {
  std::string_view digits = text;
  unsigned shift = 0;
  constexpr struct {
    std::string_view suffix;
    unsigned shift;
  } kUnits[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  for (const auto& unit : kUnits) {
    if (!digits.ends_with(unit.suffix)) continue;
    digits.remove_suffix(unit.suffix.size());
    shift = unit.shift;
    break;
  }
  std::int64_t number = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size();
  if (!whole || number < 0 || number > kvcache::kMaxPlanBytes >> shift) {
    throw StartupError(
        "command line: --budget-bytes must be bytes, or a number with KiB, MiB, GiB "
        "or TiB behind, of at most " +
        std::to_string(kvcache::kMaxPlanBytes) + " bytes, not " + config::quoted(text));
  }
  return number << shift;
}

void run_plan(const server::PlanFields& fields, bool json, std::ostream& out) {
  const server::RequestLimits limits;
  const auto judged = server::validate(fields, server::ValidationBounds{1, limits});
  if (!judged) throw StartupError("command line: " + with_plan_options(judged.error().message));
  server::PlannedModel own;
  if (fields.model) own = model_of_file(*fields.model);
  if (!fields.model && !fields.preset && !fields.layers) {
    throw StartupError(
        "command line: nothing to plan: give --preset, --model, or --layers, --head-dim and one of "
        "--kv-heads and --query-heads");
  }
  const kvcache::KvPlan plan = planned_or_throw(server::make_plan(fields, own));
  if (json) {
    out << server::kv_plan_json(plan) << '\n';
  } else {
    write_plan(plan, out);
  }
}

}  // namespace kvasir::cli
