// Chat messages to prompt segments, over the `minijinja` crate by way of text/bridge. Message text
// is data: control tokens spelled inside it never become control tokens; so are the strings of
// variables that a request sets. Thread-safe once built.
#pragma once

#include "core/result.h"
#include "text/tokenizer.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::text {

struct ChatMessage {
  std::string role;  // system, developer, user, assistant, tool
  std::string content;
  std::optional<std::string> name;
  std::optional<std::string> tool_call_id;
};

struct RenderLimits {
  std::uint64_t max_steps = 1'000'000;  // minijinja fuel
  std::size_t max_output_bytes = 32U << 20U;
};

class ChatTemplate {
 public:
  /// Parses on a thread with a 64 MiB stack; templates over 64 KiB, or with more than 250 operators
  /// in one tag, are refused. `tokenizer` must outlive the template. Errors: kInvalidModelFile
  /// naming the template (syntax, depth, size).
  [[nodiscard]] static Result<std::unique_ptr<ChatTemplate>> create(
      std::string source, const Tokenizer& tokenizer, const RenderLimits& limits = {});
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  /// Renders with add_generation_prompt, splits at the template's own control tokens and restores
  /// the messages' text. `now` is the local time that strftime_now sees, "YYYY-MM-DDTHH:MM:SS".
  /// `variables` is a JSON object of further variables, or empty; their strings are data like the
  /// messages'. Errors: kInvalidTemplateInput (raise_exception, limits); kInvalidType for variables
  /// that are no object, kJsonTooDeep; kUnsupportedParameter for one with the name of a variable
  /// or function that the template has already. `param` then begins with kVariablesParam.
  [[nodiscard]] Result<std::vector<TextSegment>> render(const std::vector<ChatMessage>& messages,
                                                        bool add_generation_prompt,
                                                        std::string_view now,
                                                        std::string_view variables = {}) const;
  static constexpr const char* kVariablesParam = "chat_template_kwargs";
  [[nodiscard]] const std::string& source() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::text
