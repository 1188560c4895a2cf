#include "text/chat_template.h"

#include "text/bridge_call.h"
#include "text/message_guard.h"
#include "text/utf8.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace kvasir::text {

namespace {

using Json = nlohmann::ordered_json;

struct TemplateDeleter {
  void operator()(kvasir_text_template* chat_template) const {
    kvasir_text_template_free(chat_template);
  }
};
using BridgeTemplate = std::unique_ptr<kvasir_text_template, TemplateDeleter>;

Error render_error(kvasir_text_status status, const BridgeBytes& error) {
  switch (status) {
    case kKvasirTextRaised:  // The template's own words to the user.
      return {ErrorCode::kInvalidTemplateInput, error.str(), "messages"};
    case kKvasirTextInternal:
      return {ErrorCode::kInternal, "chat template: " + error.str(), {}};
    default:
      return {ErrorCode::kInvalidTemplateInput, "chat template: " + error.str(), "messages"};
  }
}

/// Adds `field` with `text` guarded, where there is one.
Result<void> add_guarded(Json& message, const char* field, const std::optional<std::string>& text,
                         MessageGuard& guard) {
  if (!text) {
    return {};
  }
  return guard.guard(*text).map([&](std::string guarded) { message[field] = std::move(guarded); });
}

Result<Json> guarded_message(const ChatMessage& message, MessageGuard& guard) {
  auto role = guard.guard_spellings(message.role);
  if (!role) {
    return tl::unexpected(role.error());
  }
  Json json = {{"role", *role}};
  return add_guarded(json, "content", message.content, guard)
      .and_then([&] { return add_guarded(json, "name", message.name, guard); })
      .and_then([&] { return add_guarded(json, "tool_call_id", message.tool_call_id, guard); })
      .map([&] { return std::move(json); });
}

/// A file may name a byte token as its BOS or EOS, and JSON holds whole characters only.
std::string_view utf8_or_empty(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Prefix prefix = utf8_prefix(bytes.substr(i));
    if (prefix.kind != Utf8Prefix::Kind::kCharacter) {
      return {};
    }
    i += prefix.size_bytes;
  }
  return bytes;
}

/// What the template gets from its caller, whether or not the model has it.
constexpr std::array<std::string_view, 6> kOwnVariables = {
    "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"};
/// Deeper ones are refused before anything walks them.
constexpr int kMaxVariableDepth = 64;

tl::unexpected<Error> bad_variables(ErrorCode code, const std::string& what) {
  return fail(code, std::string(ChatTemplate::kVariablesParam) + " " + what,
              ChatTemplate::kVariablesParam);
}

/// A JSON object by name and value, in the order of the text.
Result<Json> parse_variables(std::string_view text) {
  if (text.empty()) return Json::object();
  bool too_deep = false;
  const auto bound_depth = [&](int depth, Json::parse_event_t, const Json&) {
    too_deep = too_deep || depth > kMaxVariableDepth;
    return !too_deep;
  };
  Json variables = Json::parse(text, bound_depth, /*allow_exceptions=*/false);
  if (too_deep) return bad_variables(ErrorCode::kJsonTooDeep, "is nested too deep");
  if (!variables.is_object()) return bad_variables(ErrorCode::kInvalidType, "must be an object");
  return variables;
}

/// Every string, names of members included, as `change` makes it.
template <typename Change>
Result<Json> with_texts(const Json& value, const Change& change) {
  if (value.is_string()) {
    return change(value.get_ref<const std::string&>()).map([](std::string text) {
      return Json(std::move(text));
    });
  }
  if (!value.is_structured()) return value;
  Json changed = value.is_array() ? Json::array() : Json::object();
  for (const auto& member : value.items()) {
    auto item = with_texts(member.value(), change);
    if (!item) return item;
    if (value.is_array()) {
      changed.push_back(std::move(*item));
      continue;
    }
    auto name = change(member.key());
    if (!name) return tl::unexpected(name.error());
    changed[*name] = std::move(*item);
  }
  return changed;
}

void reserve_letters(const std::vector<ChatMessage>& messages, MessageGuard& guard) {
  for (const ChatMessage& message : messages) {
    guard.reserve(message.role);
    guard.reserve(message.content);
    guard.reserve(message.name.value_or(""));
    guard.reserve(message.tool_call_id.value_or(""));
  }
}

}  // namespace

struct ChatTemplate::Impl {
  std::string source;
  const Tokenizer& tokenizer;
  RenderLimits limits;
  ControlParts parts;
  BridgeTemplate bridge;

  [[nodiscard]] Json context(std::vector<Json> messages, bool add_generation_prompt) const;
  [[nodiscard]] Result<void> add_variables(const Json& variables, MessageGuard& guard,
                                           Json& context) const;
  [[nodiscard]] Result<std::string> render(const Json& context, std::string_view now) const;
  [[nodiscard]] Result<std::vector<TextSegment>> segments(std::string_view rendered,
                                                          const MessageGuard& guard) const;
};

/// The variables that templates expect; what does not apply is none, as in the library that
/// templates are written for.
Json ChatTemplate::Impl::context(std::vector<Json> messages, bool add_generation_prompt) const {
  Json variables = {{"messages", std::move(messages)},
                    {"tools", nullptr},
                    {"documents", nullptr},
                    {"add_generation_prompt", add_generation_prompt}};
  if (const auto bos = tokenizer.bos()) {
    variables["bos_token"] = utf8_or_empty(tokenizer.token_bytes_with_special(*bos));
  }
  if (const auto eos = tokenizer.eos()) {
    variables["eos_token"] = utf8_or_empty(tokenizer.token_bytes_with_special(*eos));
  }
  return variables;
}

/// A function cannot be shadowed either: a template calls it by the same name.
Result<void> ChatTemplate::Impl::add_variables(const Json& variables, MessageGuard& guard,
                                               Json& context) const {
  for (const auto& [name, value] : variables.items()) {
    if (std::find(kOwnVariables.begin(), kOwnVariables.end(), name) != kOwnVariables.end() ||
        kvasir_text_template_has_function(bridge.get(), view_of(name))) {
      const std::string param = std::string(kVariablesParam) + "." + name;
      return fail(ErrorCode::kUnsupportedParameter, param + " is the template's own name", param);
    }
    auto guarded =
        with_texts(value, [&](std::string_view text) { return guard.guard_variable(text); });
    if (!guarded) return tl::unexpected(guarded.error());
    context[name] = std::move(*guarded);
  }
  return {};
}

Result<std::string> ChatTemplate::Impl::render(const Json& context, std::string_view now) const {
  BridgeBytes output;
  BridgeBytes error;
  const std::string variables = context.dump();
  const kvasir_text_status status = kvasir_text_template_render(
      bridge.get(), view_of(variables), view_of(now), output.out(), error.out());
  if (status != kKvasirTextOk) {
    return tl::unexpected(render_error(status, error));
  }
  return output.str();
}

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::create(std::string source,
                                                           const Tokenizer& tokenizer,
                                                           const RenderLimits& limits) {
  kvasir_text_template* parsed = nullptr;
  BridgeBytes error;
  const kvasir_text_status status = kvasir_text_template_create(
      view_of(source), {limits.max_steps, limits.max_output_bytes}, &parsed, error.out());
  if (status != kKvasirTextOk) {
    return fail(ErrorCode::kInvalidModelFile, "the chat template cannot be used: " + error.str());
  }
  auto impl = std::make_unique<Impl>(
      Impl{std::move(source), tokenizer, limits, ControlParts(tokenizer), BridgeTemplate(parsed)});
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(impl)));
}

/// A private letter may stand for more bytes than its own, so the limit is looked at once more.
Result<std::vector<TextSegment>> ChatTemplate::Impl::segments(std::string_view rendered,
                                                              const MessageGuard& guard) const {
  auto segments = tokenizer.split_at_control(rendered);
  if (!segments) {
    return segments;
  }
  std::size_t num_bytes = 0;
  for (TextSegment& segment : *segments) {
    segment.text = guard.restore(segment.text);
    num_bytes += segment.text.size();
  }
  if (num_bytes > limits.max_output_bytes) {
    return fail(ErrorCode::kInvalidTemplateInput,
                "chat template: the template's output is larger than " +
                    std::to_string(limits.max_output_bytes) + " bytes",
                "messages");
  }
  return segments;
}

Result<std::vector<TextSegment>> ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                                      bool add_generation_prompt,
                                                      std::string_view now,
                                                      std::string_view variables) const {
  const auto extra = parse_variables(variables);
  if (!extra) {
    return tl::unexpected(extra.error());
  }
  MessageGuard guard(impl_->tokenizer, impl_->parts);
  guard.reserve(impl_->source);
  reserve_letters(messages, guard);
  guard.reserve(extra->dump());  // JSON's escapes spell no private letter
  std::vector<Json> guarded;
  for (const ChatMessage& message : messages) {
    auto json = guarded_message(message, guard);
    if (!json) {
      return tl::unexpected(json.error());
    }
    guarded.push_back(std::move(*json));
  }
  Json context = impl_->context(std::move(guarded), add_generation_prompt);
  if (auto ok = impl_->add_variables(*extra, guard, context); !ok) {
    return tl::unexpected(ok.error());
  }
  const auto rendered = impl_->render(context, now);
  if (!rendered) {
    return tl::unexpected(rendered.error());
  }
  return impl_->segments(*rendered, guard);
}

const std::string& ChatTemplate::source() const { return impl_->source; }

}  // namespace kvasir::text
