#include "text/chat_template.h"

#include "text/bridge_call.h"
#include "text/message_guard.h"
#include "text/utf8.h"

#include <nlohmann/json.hpp>

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
  ControlParts parts;
  BridgeTemplate bridge;

  [[nodiscard]] Json context(std::vector<Json> messages, bool add_generation_prompt) const;
  [[nodiscard]] Result<std::string> render(const Json& context, std::string_view now) const;
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
      Impl{std::move(source), tokenizer, ControlParts(tokenizer), BridgeTemplate(parsed)});
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(impl)));
}

Result<std::vector<TextSegment>> ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                                      bool add_generation_prompt,
                                                      std::string_view now) const {
  MessageGuard guard(impl_->tokenizer, impl_->parts);
  guard.reserve(impl_->source);
  reserve_letters(messages, guard);
  std::vector<Json> guarded;
  for (const ChatMessage& message : messages) {
    auto json = guarded_message(message, guard);
    if (!json) {
      return tl::unexpected(json.error());
    }
    guarded.push_back(std::move(*json));
  }
  const auto rendered =
      impl_->render(impl_->context(std::move(guarded), add_generation_prompt), now);
  if (!rendered) {
    return tl::unexpected(rendered.error());
  }
  auto segments = impl_->tokenizer.split_at_control(*rendered);
  if (!segments) {
    return segments;
  }
  for (TextSegment& segment : *segments) {
    segment.text = guard.restore(segment.text);
  }
  return segments;
}

const std::string& ChatTemplate::source() const { return impl_->source; }

}  // namespace kvasir::text
