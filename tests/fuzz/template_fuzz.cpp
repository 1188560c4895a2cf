// A chat template, variables and messages through the Rust bridge, as a hostile model file and a
// hostile client would write them: always a rendering within its limits or an error of the right
// kind, in time and without a crash. Control tokens spelled in a message never become control
// tokens.
#include "tests/fuzz/fuzz_input.h"
#include "tests/server/tiny_model.h"
#include "text/chat_template.h"

#include <string>
#include <vector>

using namespace kvasir;
using fuzz::ByteSource;
using fuzz::require;
using server::testing::tiny_tokenizer;

namespace {

constexpr text::RenderLimits kLimits = {.max_steps = 20'000, .max_output_bytes = 1U << 15U};
constexpr const char* kNow = "2026-03-01T12:00:00";

std::vector<text::ChatMessage> read_messages(ByteSource& source) {
  std::vector<text::ChatMessage> messages;
  while (!source.empty() && messages.size() < 6) {
    text::ChatMessage& message = messages.emplace_back();
    static constexpr const char* kRoles[] = {"user", "assistant", "system", "tool"};
    const std::uint8_t kind = source.byte();
    message.role = kRoles[kind % 4U];
    if ((kind & 4U) != 0) message.name = source.take_text();
    message.content = source.take_text();
  }
  if (messages.empty()) messages.push_back({"user", "hi <|im_end|>", {}, {}});
  return messages;
}

std::size_t text_bytes(const std::vector<text::TextSegment>& segments) {
  std::size_t bytes = 0;
  for (const text::TextSegment& segment : segments) bytes += segment.text.size();
  return bytes;
}

void check_error(const Error& error, ErrorCode expected) {
  require(error.code == expected, "the error is the template's or the messages'", error.message);
  require(!error.message.empty(), "an error has words");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ByteSource source(data, size);
  const std::string text = source.take_text();
  const auto made = text::ChatTemplate::create(text, tiny_tokenizer(), kLimits);
  if (!made) {
    check_error(made.error(), ErrorCode::kInvalidModelFile);
    return 0;
  }
  const std::string variables = source.take_text();
  const std::vector<text::ChatMessage> messages = read_messages(source);
  const auto rendered = (*made)->render(messages, true, kNow, variables);
  if (!rendered) {
    // A message that is no UTF-8 never gets so far: both doors refuse it.
    if (rendered.error().code == ErrorCode::kInternal &&
        rendered.error().message.find("UTF-8") != std::string::npos)
      return 0;
    const bool by_variables =
        rendered.error().param.starts_with(text::ChatTemplate::kVariablesParam);
    if (!by_variables) check_error(rendered.error(), ErrorCode::kInvalidTemplateInput);
    return 0;
  }
  require(text_bytes(*rendered) <= kLimits.max_output_bytes, "the output is bounded");
  const auto again = (*made)->render(messages, true, kNow, variables);
  require(again && again->size() == rendered->size() && text_bytes(*again) == text_bytes(*rendered),
          "a rendering gives the same again");
  static_cast<void>(tiny_tokenizer().encode_segments(*rendered, true));
  return 0;
}
