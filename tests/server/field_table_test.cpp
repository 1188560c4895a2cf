// The table against itself, and each of its rows at its borders over both doors: the cases are made
// from the rows, so that a new row has its tests.
#include "server/field_table.h"

#include "server/field_text.h"
#include "server/http/request_json.h"
#include "server/validate.h"
#include "tests/server/both_doors.h"
#include "tests/support/catch.h"

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;
using nlohmann::json;

namespace {

constexpr std::array kUsers = {kOfCompletions, kOfChat, kOfTokenize, kOfDetokenize, kOfPlan};
constexpr std::int64_t kInt64Min = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

void for_each_use(const std::function<void(FieldUsers, const FieldRow&)>& visit) {
  for (const FieldRow& row : field_table()) {
    for (const FieldUsers user : kUsers) {
      if ((row.users & user) == 0) continue;
      INFO(row.name << " of endpoint " << user);
      visit(user, row);
    }
  }
}

/// The least numbers that describe a model.
json numbers_of_plan() { return {{"layers", 1}, {"kv_heads", 1}, {"head_dim", 1}}; }
bool is_number_of_plan(const FieldRow& row) {
  return row.users == kOfPlan && numbers_of_plan().contains(row.name);
}

/// A request that has nothing wrong but, perhaps, the row's value.
json request_with(FieldUsers user, const FieldRow& row, const json& value) {
  // What must be beside a field so that its own range is what counts.
  static const std::map<std::string_view, json> companions = {
      {"top_logprobs", {{"logprobs", true}}},
      {"stream_options", {{"stream", true}}},
      {"stream_options.include_usage", {{"stream", true}}},
      {"stream_options.continuous_usage_stats", {{"stream", true}}},
      {"window_pattern", {{"window_tokens", 8}}},
  };
  json body = plain_request(user);
  if (user == kOfTokenize && row.name == "messages") body.erase("prompt");
  if (user == kOfPlan && row.name == "model") body.erase("preset");
  if (is_number_of_plan(row) || row.name == "query_heads") body = numbers_of_plan();
  const auto found = companions.find(row.name);
  if (found != companions.end() && row.standing == FieldStanding::kSupported)
    body.update(found->second);
  if (user == kOfCompletions && row.name == "max_tokens") body["echo"] = true;
  const std::size_t dot = row.name.find('.');
  if (dot == std::string_view::npos) {
    body[std::string(row.name)] = value;
  } else {
    body[std::string(row.name.substr(0, dot))][std::string(row.name.substr(dot + 1))] = value;
  }
  return body;
}

/// Both doors say so; gRPC where it has the field and a message can hold the value.
void check_verdict(FieldUsers user, const FieldRow& row, const json& value,
                   const DoorVerdict& expected, const RequestLimits& limits = {}) {
  const json body = request_with(user, row, value);
  INFO("value " << value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 100));
  CHECK(rest_verdict(user, body, limits) == expected);
  if (!row.not_on_grpc.empty()) return;
  if (const auto verdict = grpc_verdict(user, body, limits)) CHECK(*verdict == expected);
}

DoorVerdict passes() { return {}; }
DoorVerdict fails(ErrorCode code, std::string_view param) { return {code, std::string(param), ""}; }
DoorVerdict out_of_range(const FieldRow& row) { return fails(ErrorCode::kInvalidValue, row.name); }
DoorVerdict wrong_type(const FieldRow& row) { return fails(ErrorCode::kInvalidType, row.name); }

/// A list or map of so many items that are fine by themselves.
json items(const FieldRow& row, std::int64_t count) {
  json list = row.kind == FieldKind::kBiases ? json::object() : json::array();
  for (std::int64_t i = 0; i < count; ++i) {
    if (row.kind == FieldKind::kBiases) list[std::to_string(i)] = 1.5;
    if (row.kind == FieldKind::kTexts || row.kind == FieldKind::kPrompts) list.push_back("x");
    if (row.kind == FieldKind::kTokenIds) list.push_back(i % kDoorVocabSize);
    if (row.kind == FieldKind::kMessages) list.push_back({{"role", "user"}, {"content", "x"}});
  }
  return list;
}

/// /tokenize takes one of two fields, and a plan of numbers needs all of them.
bool needs_other(FieldUsers user, const FieldRow& row) {
  return (user == kOfTokenize && row.name == "prompt") || is_number_of_plan(row);
}

std::string path_of_first(const FieldRow& row) { return std::string(row.name) + "[0]"; }

}  // namespace

TEST_CASE("field_table: an endpoint has a name once, and every row says what it is", "[server]") {
  std::set<std::pair<FieldUsers, std::string_view>> names;
  for_each_use([&](FieldUsers user, const FieldRow& row) {
    CHECK(names.insert({user, row.name}).second);
    CHECK(row.meaning.ends_with('.'));
    CHECK(row.meaning.find(". ") == std::string_view::npos);
    const bool supported = row.standing == FieldStanding::kSupported;
    CHECK(supported == !std::holds_alternative<std::monostate>(row.member));
    CHECK(supported == (row.kind != FieldKind::kAny));
    CHECK((row.standing == FieldStanding::kRefused) == !row.harmless.empty());
    if (supported) CHECK(row.required == std::holds_alternative<std::monostate>(row.when_absent));
    if (const std::size_t dot = row.name.find('.'); dot != std::string_view::npos)
      CHECK(names.count({user, row.name.substr(0, dot)}) == 1);  // read before its members
  });
}

TEST_CASE("field_table: a row's kind, ranges and default fit its member", "[server]") {
  for (const FieldRow& row : field_table()) {
    INFO(row.name);
    CHECK((row.kind == FieldKind::kInteger) == row.integers.has_value());
    CHECK((row.kind == FieldKind::kNumber || row.kind == FieldKind::kBiases) ==
          row.numbers.has_value());
    if (row.integers) CHECK(row.integers->low < value_of(row.integers->high, {}));
    if (row.numbers) CHECK(row.numbers->low < row.numbers->high);
    if (std::holds_alternative<double>(row.when_absent)) CHECK(row.kind == FieldKind::kNumber);
    if (std::holds_alternative<std::int64_t>(row.when_absent))
      CHECK(row.kind == FieldKind::kInteger);
    if (std::holds_alternative<bool>(row.when_absent)) CHECK(row.kind == FieldKind::kSwitch);
  }
  // What a struct begins with is what its rows say.
  for_each_use([](FieldUsers user, const FieldRow& row) {
    const auto* flag = std::get_if<bool>(&row.when_absent);
    if (flag == nullptr) return;
    const auto check = [flag](const auto& member) {
      if constexpr (std::is_same_v<decltype(member), const bool&>) CHECK(member == *flag);
    };
    const CompletionFields completion;
    const ChatFields chat;
    if (user == kOfCompletions) visit_member(row, completion, check);
    if (user == kOfChat) visit_member(row, chat, check);
  });
}

TEST_CASE("field_table: gRPC has every supported field, of the type of its row", "[server]") {
  const std::map<FieldKind, std::set<std::string>> types = {
      {FieldKind::kText, {"optional string"}},
      {FieldKind::kInteger, {"optional int64"}},
      {FieldKind::kNumber, {"optional double"}},
      {FieldKind::kSwitch, {"optional bool", "bool"}},
      {FieldKind::kTexts, {"repeated string"}},
      {FieldKind::kTokenIds, {"repeated int64"}},
      {FieldKind::kBiases, {"map<int64, double>"}},
      {FieldKind::kPrompts, {"repeated Prompt"}},
      {FieldKind::kMessages, {"repeated ChatMessage"}},
      {FieldKind::kObject, {"optional Struct"}}};
  for_each_use([&](FieldUsers user, const FieldRow& row) {
    const auto type = grpc_type(user, row);
    if (!type) return;  // gRPC is compiled out
    if (!row.not_on_grpc.empty()) {
      CHECK(type->empty());
      return;
    }
    REQUIRE(types.count(row.kind) == 1);
    INFO("is '" << *type << "'");
    CHECK(types.at(row.kind).count(*type) == 1);
    if (row.kind == FieldKind::kSwitch && *type == "bool")
      CHECK(std::get<bool>(row.when_absent) == false);  // without presence, absent is false
  });
}

TEST_CASE("field_table: numbers pass up to their borders and only when finite", "[server]") {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for_each_use([](FieldUsers user, const FieldRow& row) {
    if (row.kind != FieldKind::kNumber) return;
    const NumberRange& range = *row.numbers;
    check_verdict(user, row, range.high, passes());
    check_verdict(user, row, (range.low + range.high) / 2, passes());
    check_verdict(user, row, range.low, range.low_is_open ? out_of_range(row) : passes());
    if (range.low_is_open) check_verdict(user, row, 1e-300, out_of_range(row));  // 0 as a float
    if (range.low_is_open) check_verdict(user, row, 1e-3, passes());
    for (const double bad :
         {std::nextafter(range.high, 1000.0), std::nextafter(range.low, -1000.0),
          std::numeric_limits<double>::quiet_NaN(), kInf, -kInf, 1e300, -1e300}) {
      check_verdict(user, row, bad, out_of_range(row));
    }
    for (const json& bad : {json("1"), json("NaN"), json(true), json::array(), json::object()})
      check_verdict(user, row, bad, wrong_type(row));
    check_verdict(user, row, nullptr, passes());
    check_verdict(user, row, static_cast<std::int64_t>(range.high), passes());
  });
}

TEST_CASE("field_table: integers pass up to their borders and only when whole", "[server]") {
  for_each_use([](FieldUsers user, const FieldRow& row) {
    if (row.kind != FieldKind::kInteger) return;
    const std::int64_t low = row.integers->low;
    const std::int64_t high = value_of(row.integers->high, {});
    check_verdict(user, row, low, passes());
    check_verdict(user, row, high, passes());
    check_verdict(user, row, low + 1, passes());
    if (low > kInt64Min) {
      check_verdict(user, row, low - 1, out_of_range(row));
      check_verdict(user, row, kInt64Min, out_of_range(row));
    }
    if (high < kInt64Max) {
      check_verdict(user, row, high + 1, out_of_range(row));
      check_verdict(user, row, kInt64Max, out_of_range(row));
      check_verdict(user, row, std::int64_t{1} << 32U,
                    high < (1LL << 32U) ? out_of_range(row) : passes());
    }
    if (low <= 16 && high >= 16) check_verdict(user, row, 16.0, passes());
    for (const json& bad :
         {json("5"), json(true), json(2.9), json(1e30), json(-1e30), json(std::uint64_t{1} << 63U),
          json::array(), json::object(), json(std::nan(""))}) {
      check_verdict(user, row, bad, wrong_type(row));
    }
    if (!needs_other(user, row)) check_verdict(user, row, nullptr, passes());
  });
}

TEST_CASE("field_table: a text of a closed list is one of it", "[server]") {
  std::size_t lists = 0;
  for_each_use([&lists](FieldUsers user, const FieldRow& row) {
    if (row.one_of.empty()) return;
    ++lists;
    for (const std::string_view word : row.one_of) {
      check_verdict(user, row, std::string(word), passes());
      check_verdict(user, row, std::string(word) + "x", out_of_range(row));
      check_verdict(user, row, std::string(word.substr(0, word.size() - 1)), out_of_range(row));
    }
    check_verdict(user, row, "", out_of_range(row));
  });
  CHECK(lists == 2);
  CHECK(rest_verdict(kOfPlan, {{"kv_type", "q8"}}).message ==
        "kv_type must be f32, f16 or bf16, not \"q8\"");
}

TEST_CASE("field_table: switches take true and false alone", "[server]") {
  for_each_use([](FieldUsers user, const FieldRow& row) {
    if (row.kind != FieldKind::kSwitch) return;
    for (const bool value : {true, false}) check_verdict(user, row, value, passes());
    check_verdict(user, row, nullptr, passes());
    for (const json& bad : {json(1), json("true"), json::array(), json::object()})
      check_verdict(user, row, bad, wrong_type(row));
  });
}

TEST_CASE("field_table: texts pass up to their bytes", "[server]") {
  for_each_use([](FieldUsers user, const FieldRow& row) {
    if (row.kind != FieldKind::kText && row.kind != FieldKind::kTexts) return;
    for (const json& bad : {json(1), json(true), json::object()})
      check_verdict(user, row, bad, wrong_type(row));
    if (!needs_other(user, row)) check_verdict(user, row, nullptr, passes());
    if (!row.bytes) return;
    const auto text = [](std::int64_t bytes) {
      return std::string(static_cast<std::size_t>(bytes), 'x');
    };
    const std::int64_t high = value_of(row.bytes->high, {});
    check_verdict(user, row, text(row.bytes->low), passes());
    check_verdict(user, row, text(high), passes());
    check_verdict(user, row, text(high + 1), out_of_range(row));
    if (row.bytes->low > 0) check_verdict(user, row, text(row.bytes->low - 1), out_of_range(row));
    if (row.kind == FieldKind::kText) return;
    check_verdict(user, row, json::array({text(high), text(high + 1)}), out_of_range(row));
    check_verdict(user, row, json::array({"x", 1}), wrong_type(row));
  });
}

TEST_CASE("field_table: lists and maps pass up to their counts", "[server]") {
  for_each_use([](FieldUsers user, const FieldRow& row) {
    if (!row.most_items) return;
    const std::int64_t most = value_of(*row.most_items, {});
    check_verdict(user, row, items(row, 1), passes());
    check_verdict(user, row, items(row, most), passes());
    check_verdict(user, row, items(row, most + 1), out_of_range(row));
  });
}

TEST_CASE("field_table: bounds that are the operator's are the operator's", "[server]") {
  RequestLimits narrow;
  narrow.messages = narrow.prompts = narrow.stop_strings = narrow.stop_bytes = 2;
  narrow.choices = 2;
  for_each_use([&](FieldUsers user, const FieldRow& row) {
    if (row.most_items && !std::holds_alternative<std::int64_t>(*row.most_items)) {
      check_verdict(user, row, items(row, 2), passes(), narrow);
      check_verdict(user, row, items(row, 3), out_of_range(row), narrow);
    }
    if (row.integers && !std::holds_alternative<std::int64_t>(row.integers->high)) {
      check_verdict(user, row, 2, passes(), narrow);
      check_verdict(user, row, 3, out_of_range(row), narrow);
    }
    if (row.bytes && !std::holds_alternative<std::int64_t>(row.bytes->high)) {
      check_verdict(user, row, "xx", passes(), narrow);
      check_verdict(user, row, "xxx", out_of_range(row), narrow);
    }
  });
  CHECK(rest_verdict(kOfCompletions, {{"prompt", "x"}, {"n", 3}}, narrow).message ==
        "n must be an integer from 1 to 2, not 3");
}

TEST_CASE("field_table: token ids are below the logits width, everywhere", "[server]") {
  for_each_use([](FieldUsers user, const FieldRow& row) {
    if (row.kind != FieldKind::kTokenIds && row.kind != FieldKind::kPrompts) return;
    const auto at = [&row](ErrorCode code) { return fails(code, path_of_first(row)); };
    for (const std::int64_t good : {std::int64_t{0}, std::int64_t{kDoorVocabSize - 1}})
      check_verdict(user, row, json::array({good}), passes());
    for (const std::int64_t bad :
         {std::int64_t{kDoorVocabSize}, std::int64_t{-1}, std::int64_t{1} << 31U, kInt64Max}) {
      check_verdict(user, row, json::array({bad}), at(ErrorCode::kInvalidValue));
    }
    for (const json& bad : {json(std::uint64_t{1} << 63U), json(1.5)})
      check_verdict(user, row, json::array({bad}), at(ErrorCode::kInvalidType));
    check_verdict(user, row, json::array({1, "a"}),
                  fails(ErrorCode::kInvalidType, std::string(row.name) + "[1]"));
  });
}

TEST_CASE("field_table: a required field is missed", "[server]") {
  for_each_use([](FieldUsers user, const FieldRow& row) {
    if (!row.required) return;
    const DoorVerdict missing = fails(ErrorCode::kMissingParameter, row.name);
    for (const json& body : {json::object(), json{{std::string(row.name), nullptr}}}) {
      CHECK(rest_verdict(user, body) == missing);
      if (const auto verdict = grpc_verdict(user, body)) CHECK(*verdict == missing);
    }
  });
}

TEST_CASE("field_table: what is not built is refused by name, and only when it asks for something",
          "[server]") {
  for_each_use([](FieldUsers user, const FieldRow& row) {
    if (row.standing == FieldStanding::kSupported) return;
    const bool refused = row.standing == FieldStanding::kRefused;
    const DoorVerdict verdict =
        refused ? fails(ErrorCode::kUnsupportedParameter, row.name) : passes();
    for (const json& value : {json("something"), json(7), json::array({"audio"}),
                              json{{"type", "json_object"}}, json{{"tokenize", true}}}) {
      check_verdict(user, row, value, verdict);
    }
    check_verdict(user, row, nullptr, passes());
    if (refused) check_verdict(user, row, json::parse(row.harmless), passes());
  });
}

TEST_CASE("field_table: defaults reach the engine as the rows say", "[server]") {
  const RequestLimits limits;
  CompletionFields fields;
  fields.prompts = {std::string("x")};
  const auto params = validate(fields, ValidationBounds{kDoorVocabSize, limits});
  REQUIRE(params.has_value());
  CHECK(params->sampling.temperature == 1.0F);
  CHECK(params->sampling.top_p == 1.0F);
  CHECK(params->sampling.repetition_penalty == 1.0F);
  CHECK(params->sampling.top_k == 0);
  CHECK(params->num_choices == 1);
  CHECK_FALSE(params->max_tokens);
  CHECK_FALSE(params->prompt_logprobs);
  CHECK_FALSE(params->echo);
  fields.prompt_logprobs = 0;
  fields.echo = true;
  fields.max_tokens = 0;
  fields.top_k = -1;
  const auto more = validate(fields, ValidationBounds{kDoorVocabSize, limits});
  REQUIRE(more.has_value());
  CHECK(more->prompt_logprobs == 0U);
  CHECK(more->echo);
  CHECK(more->max_tokens == 0U);
  CHECK(more->sampling.top_k == 0);
}
