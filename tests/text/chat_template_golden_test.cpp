// Chat templates against what transformers' own environment prints; the rows that differ are named,
// with the cause.
#include "tests/support/catch.h"
#include "tests/text/vocabularies.h"
#include "text/bridge_call.h"

#include <cstdlib>
#include <map>
#include <string>

namespace kvasir::text {
namespace {

using Json = nlohmann::ordered_json;

/// Rows that differ, by line of chat-templates.jsonl, and why. A row that agrees must leave the
/// list.
const std::map<std::size_t, const char*> kDiffering = {
    {150, "chat: slicing none is an empty list in minijinja and an error in Jinja"},
    {178, "core: methods are not values in minijinja, so none `is callable`"},
    {257, "core: looping over none loops zero times in minijinja and is an error in Jinja"},
    {294, "core: a namespace takes attributes with an underscore; nothing private is behind them"},
    {201, "rare: no % operator on strings"},
    {203, "rare: no bytes, so no encode()"},
    {223, "rare: truncate takes only keywords"},
    {226, "rare: methods are not values"},
    {228, "rare: no wordwrap"},
    {261, "rare: macros have no varargs and kwargs"},
    {271, "rare: a cycler has no next()"},
    {272, "rare: no lipsum"},
    {296, "rare: methods are not values"},
};

struct Outcome {
  kvasir_text_status status = kKvasirTextOk;
  std::string text;  // the output or the error
};

Outcome render(const Json& row) {
  const auto source = row.at("template").get<std::string>();
  const auto context = row.at("context").dump();
  const auto now =
      row.value("now", Json("")).is_string() ? row.value("now", std::string()) : std::string();
  kvasir_text_template* parsed = nullptr;
  BridgeBytes create_error;
  const auto created = kvasir_text_template_create(view_of(source), {1'000'000, 32U << 20U},
                                                   &parsed, create_error.out());
  if (created != kKvasirTextOk) return {created, create_error.str()};
  BridgeBytes output;
  BridgeBytes error;
  const auto status = kvasir_text_template_render(parsed, view_of(context), view_of(now),
                                                  output.out(), error.out());
  kvasir_text_template_free(parsed);
  return {status, status == kKvasirTextOk ? output.str() : error.str()};
}

bool agrees(const Json& row, const Outcome& outcome) {
  if (row.contains("output") && !row.at("output").is_null()) {
    return outcome.status == kKvasirTextOk && outcome.text == row.at("output").get<std::string>();
  }
  if (row.at("error") == "raised") {
    return outcome.status == kKvasirTextRaised &&
           outcome.text == row.at("message").get<std::string>();
  }
  return outcome.status == kKvasirTextInvalid;
}

TEST_CASE("ChatTemplate: every golden row renders as in Python, or is named as differing",
          "[text][golden]") {
  const auto rows = read_json_lines(golden_path("chat-templates.jsonl"));
  std::map<std::string, std::size_t> equal;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t line = i + 1;
    const Outcome outcome = render(rows[i]);
    const bool same = agrees(rows[i], outcome);
    INFO("line " << line << ": " << rows[i].at("template") << "\n expected "
                 << rows[i].value("output", Json()) << " " << rows[i].value("error", Json())
                 << "\n got " << outcome.status << " " << outcome.text);
    CHECK(same != kDiffering.contains(line));
    if (same)
      ++equal[rows[i].at("kind").get<std::string>() + " " + rows[i].value("tier", std::string())];
  }
  CHECK(rows.size() == 312);
  for (const auto& [kind, count] : equal) WARN(kind << ": " << count << " rows equal");
}

}  // namespace
}  // namespace kvasir::text
