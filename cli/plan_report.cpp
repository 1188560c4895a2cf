#include "cli/plan_report.h"

#include "runtime/model/printable.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ostream>
#include <string_view>
#include <utility>
#include <vector>

namespace kvasir::cli {
namespace {

using kvcache::KvPlan;
using kvcache::PlanGroup;
using Row = std::vector<std::string>;

constexpr std::size_t kLeft = 0;  // the column of names; all others are numbers, which end alike

/// Rows of one width for each column, two spaces in front and between.
void write_rows(const std::vector<Row>& rows, std::ostream& out) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      line += i == kLeft ? "  " + row[i] + padding : "  " + padding + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
}

std::string decimal(double number, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, number);
  return text.data();
}

std::string counted(std::uint64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

Row sized(std::string name, std::uint64_t bytes) {
  return {std::move(name), binary_bytes_text(bytes), std::to_string(bytes) + " bytes"};
}

void write_head(const KvPlan& plan, std::ostream& out) {
  const kvcache::PlanRequest& asked = plan.asked;
  const std::string& name = asked.model.name;
  out << (name.empty() ? "A model" : runtime::printable(name)) << " of "
      << counted(plan.num_layers, "layer") << ", " << counted(asked.model.query_heads, "query head")
      << ", " << counted(plan.num_kv_heads, "KV head") << " of " << plan.head_dim
      << " dimensions; elements of type " << kvcache::kv_type_name(asked.type) << '\n';
  if (!asked.grouping) out << "Without grouping: a KV head for each query head\n";
  out << '\n' << plan.formula << " bytes a token\n" << plan.formula_total << " bytes\n";
}

void write_bytes(const KvPlan& plan, std::ostream& out) {
  const kvcache::PlanRequest& asked = plan.asked;
  const std::string batch = counted(asked.batch, "sequence");
  std::vector<Row> rows = {
      sized("a token", plan.bytes_per_token),
      sized("a sequence of " + counted(asked.context_tokens, "token"), plan.bytes_per_sequence),
      sized(batch, plan.total_bytes)};
  out << "\nKV cache\n";
  if (asked.model.weights_bytes) {
    rows.push_back(sized("the weights", *asked.model.weights_bytes));
    rows.push_back({batch + " to the weights", decimal(*plan.ratio_to_weights, 2)});
  } else {
    rows.push_back({"the weights", "not known"});
  }
  rows.push_back({"query heads to a KV head", std::to_string(plan.grouping_ratio)});
  if (asked.budget_bytes) {
    rows.push_back(sized("the budget", *asked.budget_bytes));
    rows.push_back({"sequences in it", std::to_string(*plan.sequences_in_budget)});
  }
  write_rows(rows, out);
  if (!asked.model.weights_from.empty()) out << "  (weights: " << asked.model.weights_from << ")\n";
}

void write_charge(const KvPlan& plan, std::ostream& out) {
  const kvcache::PlanCharge& charge = plan.charge;
  out << "\nAs kvasir charges it, in blocks of " << charge.block_tokens << " tokens";
  if (std::any_of(plan.groups.begin(), plan.groups.end(),
                  [](const PlanGroup& group) { return group.shape.window_tokens > 0; }))
    out << " and with room for a chunk of " << charge.largest_chunk << " behind each window";
  out << '\n';
  std::vector<Row> rows = {sized("a block", charge.bytes_per_block),
                           sized("a sequence, " + counted(charge.blocks_per_sequence, "block"),
                                 charge.bytes_per_sequence),
                           sized(counted(plan.asked.batch, "sequence"), charge.total_bytes)};
  if (charge.sequences_in_budget)
    rows.push_back({"sequences in the budget", std::to_string(*charge.sequences_in_budget)});
  write_rows(rows, out);
}

Row compared(std::string name, std::uint64_t with, std::uint64_t without) {
  return {std::move(name), std::to_string(with), std::to_string(without),
          decimal(static_cast<double>(without) / static_cast<double>(with), 1)};
}

void write_work(const KvPlan& plan, std::ostream& out) {
  const kvcache::PlanRequest& asked = plan.asked;
  out << "\nWork for a prompt of " << counted(asked.prompt_tokens, "token") << " and "
      << asked.new_tokens << " new\n";
  const std::string scores = plan.groups.size() == 1 ? "attention scores of a layer and head"
                                                     : "attention scores of a layer and head, mean";
  write_rows(
      {{"", "with a cache", "without", "times"},
       compared("token passes", plan.token_passes_with_cache, plan.token_passes_without_cache),
       compared(scores, plan.attention_scores_with_cache, plan.attention_scores_without_cache)},
      out);
}

void write_groups(const KvPlan& plan, std::ostream& out) {
  if (plan.groups.size() == 1 && plan.groups.front().shape.window_tokens == 0) return;
  out << "\nLayer groups; scores of one layer and head\n";
  std::vector<Row> rows = {{"layers", "window", "tokens kept", "bytes a token", "bytes a sequence",
                            "scores with a cache", "without"}};
  for (const PlanGroup& group : plan.groups) {
    const std::uint32_t window = group.shape.window_tokens;
    rows.push_back({std::to_string(group.shape.num_layers),
                    window == 0 ? "none" : std::to_string(window),
                    std::to_string(group.kept_tokens), std::to_string(group.bytes_per_token),
                    std::to_string(group.bytes_per_sequence),
                    std::to_string(group.attention_scores_with_cache),
                    std::to_string(group.attention_scores_without_cache)});
  }
  write_rows(rows, out);
}

}  // namespace

std::string binary_bytes_text(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  constexpr std::uint64_t kStep = 1024;
  if (bytes < kStep) return counted(bytes, "byte");
  std::uint64_t unit = kStep;
  std::size_t index = 0;
  while (index + 1 < kUnits.size() && bytes / kStep >= unit) {
    unit *= kStep;
    ++index;
  }
  const double size = static_cast<double>(bytes) / static_cast<double>(unit);
  std::string text = decimal(size, bytes % unit == 0 ? 0 : 1);
  text += ' ';
  text += kUnits.at(index);
  return text;
}

void write_plan(const KvPlan& plan, std::ostream& out) {
  write_head(plan, out);
  write_bytes(plan, out);
  write_groups(plan, out);
  write_charge(plan, out);
  write_work(plan, out);
}

}  // namespace kvasir::cli
