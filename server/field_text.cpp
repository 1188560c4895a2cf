#include "server/field_text.h"

#include "server/shown_value.h"

#include <cmath>

namespace kvasir::server {
namespace {

constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

std::string number_range(const NumberRange& range) {
  const std::string high = shown_value(range.high);
  if (range.low_is_open) return "above " + shown_value(range.low) + " and at most " + high;
  return "from " + shown_value(range.low) + " to " + high;
}

std::string integer_text(const IntegerRange& range, const RequestLimits& limits) {
  const std::int64_t high = value_of(range.high, limits);
  const bool has_low = range.low > std::numeric_limits<std::int64_t>::min();
  if (!has_low && high == kInt64Max) return "a 64-bit integer";
  if (high == kInt64Max) return "an integer of at least " + shown_value(range.low);
  return "an integer from " + shown_value(range.low) + " to " + shown_value(high);
}

/// " of 1 to 256 bytes", or nothing.
std::string byte_range(const std::optional<ByteRange>& range, const RequestLimits& limits) {
  if (!range) return "";
  const std::string high = shown_value(value_of(range->high, limits)) + " bytes";
  return range->low > 0 ? " of " + shown_value(range->low) + " to " + high : " of at most " + high;
}

/// "f32, f16 or bf16".
std::string one_of_text(std::span<const std::string_view> words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 < words.size() ? ", " : " or ";
    text += words[i];
  }
  return text;
}

std::string at_most(const std::optional<Bound>& bound, const RequestLimits& limits) {
  return bound ? "at most " + shown_value(value_of(*bound, limits)) + " " : "";
}

}  // namespace

std::string allowed_text(const FieldRow& row, const RequestLimits& limits) {
  const std::string most = at_most(row.most_items, limits);
  const std::string bytes = byte_range(row.bytes, limits);
  switch (row.kind) {
    case FieldKind::kText:
      if (!row.one_of.empty()) return one_of_text(row.one_of);
      return "a string" + bytes + (row.form.empty() ? "" : " of the form " + std::string(row.form));
    case FieldKind::kInteger:
      return integer_text(row.integers.value_or(IntegerRange{}), limits);
    case FieldKind::kNumber:
      return "a number " + number_range(row.numbers.value_or(NumberRange{}));
    case FieldKind::kSwitch:
      return "true or false";
    case FieldKind::kTexts:
      return "a string or a list of " + most + "strings, each" + bytes;
    case FieldKind::kTokenIds:
      return "a list of " + most + "token ids";
    case FieldKind::kBiases:
      return "a map of " + most + "token ids in decimal to numbers " +
             number_range(row.numbers.value_or(NumberRange{}));
    case FieldKind::kPrompts:
      return "a string, a list of token ids, or a list of " + most +
             "strings or lists of token ids, none of them empty";
    case FieldKind::kMessages:
      return "a list of " + most + "messages, and of one at least";
    case FieldKind::kObject:
      return "an object" + (bytes.empty() ? "" : bytes + " as JSON");
    case FieldKind::kOptions:
      return "an object";
    case FieldKind::kAny:
      break;
  }
  if (row.standing == FieldStanding::kAccepted) return "anything";
  return row.harmless == "null" ? "absent" : "absent or " + std::string(row.harmless);
}

std::string default_text(const FieldRow& row) {
  if (const auto* words = std::get_if<std::string_view>(&row.when_absent))
    return std::string(*words);
  if (const auto* flag = std::get_if<bool>(&row.when_absent)) return *flag ? "true" : "false";
  if (const auto* count = std::get_if<std::int64_t>(&row.when_absent)) return shown_value(*count);
  if (const auto* number = std::get_if<double>(&row.when_absent)) return shown_value(*number);
  return "";
}

}  // namespace kvasir::server
