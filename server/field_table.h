// One row for each field of a request: its name at both doors, its type, where it is kept, what it
// may be and what it means. Reading it from JSON and from protobuf, its range check, docs/API.md
// and the OpenAPI document are all made from these rows, so that they cannot differ. What no row
// can say (forms of prompts and messages, combinations of fields) is code next to its users.
#pragma once

#include "server/request_fields.h"
#include "server/request_limits.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace kvasir::server {

/// The endpoints that a field belongs to, as a set.
enum FieldUsers : unsigned {
  kOfCompletions = 1U,
  kOfChat = 2U,
  kOfTokenize = 4U,
  kOfDetokenize = 8U,
  kOfPlan = 16U,
};

enum class FieldKind : std::uint8_t {
  kText,
  kInteger,   // 64 bits
  kNumber,    // finite
  kSwitch,    // true or false
  kTexts,     // a text or a list of texts
  kTokenIds,  // a list of ids below the logits width
  kBiases,    // a map of decimal token ids to numbers
  kPrompts,   // see request_json
  kMessages,  // see request_json
  kObject,    // any members
  kOptions,   // an object whose members are rows of their own, "stream_options.include_usage"
  kAny,       // nobody looks: of fields that are not kSupported
};

enum class FieldStanding : std::uint8_t {
  kSupported,
  kAccepted,  // known, and without a say in the answer
  kRefused,  // known, with a meaning that is not built: anything but the harmless value is an error
};

/// A bound that is fixed, or the operator's.
using Bound =
    std::variant<std::int64_t, std::size_t RequestLimits::*, std::int64_t RequestLimits::*>;

struct NumberRange {
  double low = 0;
  double high = 0;
  bool low_is_open = false;  // then it is excluded, and so is what becomes it as a float
};

struct IntegerRange {
  std::int64_t low = std::numeric_limits<std::int64_t>::min();
  Bound high = std::numeric_limits<std::int64_t>::max();
};

struct ByteRange {
  std::int64_t low = 0;
  Bound high = std::numeric_limits<std::int64_t>::max();
};

using FieldMember = std::variant<
    std::monostate, std::optional<std::string> RequestFields::*,
    std::optional<std::string> GenerateFields::*, std::optional<double> GenerateFields::*,
    std::optional<std::int64_t> GenerateFields::*, std::optional<bool> GenerateFields::*,
    bool GenerateFields::*, std::vector<std::string> GenerateFields::*,
    std::vector<std::int64_t> GenerateFields::*,
    std::vector<std::pair<std::string, double>> GenerateFields::*,
    std::vector<PromptInput> CompletionFields::*, std::optional<std::int64_t> CompletionFields::*,
    bool CompletionFields::*, std::vector<text::ChatMessage> ChatFields::*,
    std::optional<std::int64_t> ChatFields::*, bool ChatFields::*, std::string ChatFields::*,
    std::optional<std::string> TokenizeFields::*,
    std::optional<std::vector<text::ChatMessage>> TokenizeFields::*,
    std::optional<bool> TokenizeFields::*, std::vector<std::int64_t> DetokenizeFields::*,
    std::optional<std::string> PlanFields::*, std::optional<std::int64_t> PlanFields::*,
    std::optional<bool> PlanFields::*>;

/// A value, or words where it depends on something ("what is left of the context"). Nothing: the
/// field is required, or not kSupported.
using FieldDefault = std::variant<std::monostate, bool, std::int64_t, double, std::string_view>;

struct FieldRow {
  std::string_view name;  // "temperature"; with a dot inside of an object
  FieldKind kind = FieldKind::kAny;
  unsigned users = 0;  // of FieldUsers
  FieldMember member = std::monostate();
  FieldStanding standing = FieldStanding::kSupported;
  bool required = false;
  std::optional<NumberRange> numbers = {};    // the value, or each value of a map
  std::optional<IntegerRange> integers = {};  // the value
  std::optional<Bound> most_items = {};       // of a list or map
  std::optional<ByteRange> bytes = {};        // of a text, each text of a list, an object's JSON
  std::span<const std::string_view> one_of = {};  // of a text: all that it may be; empty: anything
  std::string_view form = {};  // of a text, as a regular expression that says all: "^[0-9]+$"
  FieldDefault when_absent = std::monostate();
  std::string_view harmless = {};   // of a refused field, as JSON: the value that asks for nothing
  std::string_view meaning = {};    // one sentence
  std::string_view grpc_name = {};  // where it differs
  std::string_view not_on_grpc = {};  // why gRPC has no such field; empty: it has
};

/// In the order in which a request's fields are read and judged.
[[nodiscard]] std::span<const FieldRow> field_table();

[[nodiscard]] std::int64_t value_of(const Bound& bound, const RequestLimits& limits);

template <typename Fields>
constexpr unsigned users_of() {
  if constexpr (std::is_same_v<Fields, CompletionFields>) return kOfCompletions;
  if constexpr (std::is_same_v<Fields, ChatFields>) return kOfChat;
  if constexpr (std::is_same_v<Fields, TokenizeFields>) return kOfTokenize;
  if constexpr (std::is_same_v<Fields, DetokenizeFields>) return kOfDetokenize;
  if constexpr (std::is_same_v<Fields, PlanFields>) return kOfPlan;
}

/// Calls `visit` with the row's member in `fields`, if it has one there.
template <typename Fields, typename Visit>
void visit_member(const FieldRow& row, Fields& fields, const Visit& visit) {
  std::visit(
      [&](auto member) {
        if constexpr (requires { fields.*member; }) visit(fields.*member);
      },
      row.member);
}

/// The row of a member that has one row only.
[[nodiscard]] const FieldRow& row_of(const FieldMember& member);

}  // namespace kvasir::server
