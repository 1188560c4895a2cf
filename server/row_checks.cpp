#include "server/row_checks.h"

#include "server/field_text.h"
#include "server/shown_value.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

namespace kvasir::server {
namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

/// What is never a request's to set, whatever the operator listed: it would change what the other
/// fields mean, or is the template itself.
constexpr std::array<std::string_view, 14> kReservedKwargs = {"add_generation_prompt",
                                                              "bos_token",
                                                              "chat_template",
                                                              "chat_template_kwargs",
                                                              "continue_final_message",
                                                              "conversation",
                                                              "documents",
                                                              "eos_token",
                                                              "messages",
                                                              "return_dict",
                                                              "return_tensors",
                                                              "strftime_now",
                                                              "tokenize",
                                                              "tools"};

template <typename List>
bool contains(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

/// NaN fails every comparison that must hold, and infinities lie outside of every range.
bool is_in(double number, const NumberRange& range) {
  if (!std::isfinite(number) || number > range.high) return false;
  if (!range.low_is_open) return number >= range.low;
  // A double above an open end may still be that end as a float, which sampling works with.
  const auto as_float = static_cast<float>(number);
  return as_float > range.low && std::isnormal(as_float);
}

/// One field against its row; one function for each type that a member has.
class RowCheck {
 public:
  RowCheck(const FieldRow& row, const ValidationBounds& bounds, Verdict& verdict)
      : row_(row), bounds_(bounds), verdict_(verdict), name_(row.name) {}

  template <typename Value>
  void check(const std::optional<Value>& value) {
    if (value) check(*value);
  }
  void check(bool /*value*/) {}

  void check(std::int64_t value) {
    const IntegerRange range = row_.integers.value_or(IntegerRange{});
    require(value >= range.low && value <= value_of(range.high, bounds_.limits),
            shown_value(value));
  }

  void check(double value) {
    require(is_in(value, row_.numbers.value_or(NumberRange{})), shown_value(value));
  }

  void check(const std::string& text) {
    if (row_.kind == FieldKind::kObject) return check_kwargs(text);
    if (!row_.one_of.empty() && !contains(row_.one_of, text))
      return require(false, shown_value(text));
    if (!has_good_size(text)) require(false, sized(text));
  }

  void check(const std::vector<std::string>& texts) {
    if (has_too_many(texts.size())) return;
    for (const std::string& text : texts)
      if (!has_good_size(text)) require(false, sized(text));
  }

  void check(const std::vector<std::int64_t>& ids) {
    if (!has_too_many(ids.size())) check_ids(ids, name_);
  }

  void check(const std::vector<std::pair<std::string, double>>& biases) {
    if (has_too_many(biases.size())) return;
    std::set<std::uint32_t> seen;
    for (const auto& [key, bias] : biases) {
      std::uint32_t token = 0;
      const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token);
      const bool canonical = parsed.ec == std::errc() && parsed.ptr == key.data() + key.size() &&
                             (key.size() == 1 || key.front() != '0');
      require_that(canonical && token < bounds_.vocab_size,
                   "a map whose keys are token ids in decimal " + id_range(),
                   "a map with the key " + shown_value(key));
      require(is_in(bias, row_.numbers.value_or(NumberRange{})),
              "a map with the value " + shown_value(bias));
      require_that(seen.insert(token).second, "a map that names each token once",
                   "a map with the token " + std::to_string(token) + " twice");
    }
  }

  void check(const std::vector<PromptInput>& prompts) {
    if (prompts.empty()) missing("prompt must be given and must not be an empty list");
    if (has_too_many(prompts.size())) return;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const std::string path = prompts.size() == 1 ? name_ : item_path(i);
      if (const auto* text = std::get_if<std::string>(&prompts[i])) {
        verdict_.require(!text->empty(), path, "a text of at least one byte", "an empty one");
      } else {
        const auto& ids = std::get<std::vector<std::int64_t>>(prompts[i]);
        verdict_.require(!ids.empty(), path, "a list of at least one token id", "an empty one");
        check_ids(ids, path);
      }
    }
  }

  void check(const std::vector<text::ChatMessage>& messages) {
    if (messages.empty()) missing("messages must hold at least one message");
    if (has_too_many(messages.size())) return;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const text::ChatMessage& message = messages[i];
      verdict_.require(contains(kRoles, message.role), item_path(i) + ".role",
                       "system, developer, user, assistant or tool", shown_value(message.role));
      const std::string call = item_path(i) + ".tool_call_id";
      if (message.role == "tool" && !message.tool_call_id) {
        verdict_.fail(ErrorCode::kMissingParameter, call,
                      call + " must be given for the role \"tool\"");
      }
    }
  }

 private:
  void require(bool holds, const std::string& value) {
    if (!holds) verdict_.require(false, name_, allowed_text(row_, bounds_.limits), value);
  }
  void require_that(bool holds, const std::string& allowed, const std::string& value) {
    if (!holds) verdict_.require(false, name_, allowed, value);
  }
  void missing(std::string message) {
    verdict_.fail(ErrorCode::kMissingParameter, name_, std::move(message));
  }
  [[nodiscard]] std::string item_path(std::size_t index) const {
    return name_ + "[" + std::to_string(index) + "]";
  }
  [[nodiscard]] std::string id_range() const {
    return "from 0 to " + std::to_string(bounds_.vocab_size - 1);
  }

  bool has_too_many(std::size_t count) {
    const bool too_many = row_.most_items && count > static_cast<std::size_t>(value_of(
                                                         *row_.most_items, bounds_.limits));
    require(!too_many, "one of " + std::to_string(count));
    return too_many;
  }

  [[nodiscard]] bool has_good_size(const std::string& text) const {
    if (!row_.bytes) return true;
    const auto size = static_cast<std::int64_t>(text.size());
    return size >= row_.bytes->low && size <= value_of(row_.bytes->high, bounds_.limits);
  }
  static std::string sized(const std::string& text) {
    return text.empty() ? "an empty one"
                        : "one of " + std::to_string(text.size()) + " bytes, " + shown_value(text);
  }

  void check_ids(const std::vector<std::int64_t>& ids, const std::string& path) {
    for (std::size_t i = 0; i < ids.size() && !verdict_.failed(); ++i) {
      verdict_.require(ids[i] >= 0 && ids[i] < static_cast<std::int64_t>(bounds_.vocab_size),
                       path + "[" + std::to_string(i) + "]", "a token id " + id_range(),
                       shown_value(ids[i]));
    }
  }

  /// The names of a JSON object's members; the text is the door's own, so it is well-formed.
  void check_kwargs(const std::string& object) {
    if (object.empty()) return;
    if (!has_good_size(object)) {
      return require(false, "one of " + std::to_string(object.size()) + " bytes");
    }
    const nlohmann::json members = nlohmann::json::parse(object);
    for (const auto& member : members.items()) {
      const std::string& key = member.key();
      if (!contains(kReservedKwargs, key) && contains(bounds_.limits.chat_template_kwargs, key))
        continue;
      const std::string shown = shown_value(key);
      const std::string param = name_ + "." + shown.substr(1, shown.size() - 2);
      return verdict_.fail(ErrorCode::kUnsupportedParameter, param,
                           param +
                               " is not one of the template's variables that this server lets "
                               "requests set");
    }
  }

  const FieldRow& row_;
  const ValidationBounds& bounds_;
  Verdict& verdict_;
  const std::string name_;
};

}  // namespace

template <typename Fields>
void check_rows(const Fields& fields, const ValidationBounds& bounds, Verdict& verdict) {
  for (const FieldRow& row : field_table()) {
    if ((row.users & users_of<Fields>()) == 0) continue;
    if (verdict.failed()) return;
    visit_member(row, fields,
                 [&](const auto& value) { RowCheck(row, bounds, verdict).check(value); });
  }
}

template void check_rows(const CompletionFields&, const ValidationBounds&, Verdict&);
template void check_rows(const ChatFields&, const ValidationBounds&, Verdict&);
template void check_rows(const TokenizeFields&, const ValidationBounds&, Verdict&);
template void check_rows(const DetokenizeFields&, const ValidationBounds&, Verdict&);
template void check_rows(const PlanFields&, const ValidationBounds&, Verdict&);

}  // namespace kvasir::server
