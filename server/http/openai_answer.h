// The shapes of OpenAI's answers: whole ones, stream chunks, usage, logprobs and errors, as JSON
// text. It sees no sockets; what is sent when is the session's.
#pragma once

#include "core/result.h"
#include "server/generation.h"
#include "server/http/json_writer.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::server {

enum class Endpoint : std::uint8_t { kCompletions, kChat };

struct AnswerShape {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string id;            // "cmpl-..." or "chatcmpl-..."
  std::int64_t created = 0;  // unix seconds
  std::string model;         // served name
  std::string system_fingerprint;
  bool logprobs = false;
  bool return_token_ids = false;        // streams: see StreamAnswer
  bool include_usage = false;           // streams: a usage chunk at the end, "usage":null before it
  bool continuous_usage_stats = false;  // streams: running usage in every chunk
  std::uint32_t choices_per_prompt = 1;
};

/// {"error":{...}}
[[nodiscard]] std::string error_body(const Error& error);
/// The same as a server-sent event.
[[nodiscard]] std::string error_event(const Error& error);
/// A token as a list of tokens shows it: its text, or bytes:\xe2\x80 when it is no UTF-8 by itself.
[[nodiscard]] std::string printed_token(const TokenText& token);

/// Where the tokens of one choice begin in its text, in code points of the text as it is delivered:
/// ill-formed bytes count as the U+FFFD that stand for them.
class TextPosition {
 public:
  /// Moves over one token and returns where it begins: inside a character that an earlier token
  /// began, where that character does.
  std::uint64_t advance(std::string_view bytes);
  /// So many code points have gone by, whatever the tokens before said.
  void move_to(std::uint64_t characters);

 private:
  std::uint64_t characters_ = 0;  // complete ones
  std::string unfinished_;        // bytes of the next one
};

/// One choice's logprobs in the form of its endpoint; completions count text offsets over all
/// calls.
class LogprobWriter {
 public:
  void write(Endpoint endpoint, const ChoiceDelta& delta, JsonWriter& json);

 private:
  TextPosition position_;
};

/// Server-sent events of one streamed answer. With return_token_ids every choice of every chunk has
/// "token_ids", empty where the chunk brings no tokens; joined, they are the whole answer's.
class StreamAnswer {
 public:
  StreamAnswer(AnswerShape shape, std::uint32_t num_choices);
  /// About what events() will take.
  [[nodiscard]] std::size_t estimated_bytes(const std::vector<ChoiceDelta>& deltas,
                                            const Generation& generation) const;
  /// The events of what one poll returned (none of it an error).
  [[nodiscard]] std::string events(const std::vector<ChoiceDelta>& deltas,
                                   const Generation& generation);
  /// The usage chunk if asked for, and [DONE].
  [[nodiscard]] std::string end(const Usage& usage) const;

 private:
  struct ChoiceState {
    bool began = false;
    LogprobWriter logprobs;
  };
  enum class Part : std::uint8_t { kRole, kContent, kFinish };
  void append_event(std::string& out, Part part, const ChoiceDelta& delta,
                    const Generation& generation);
  void write_choice(JsonWriter& json, Part part, const ChoiceDelta& delta,
                    const Generation& generation, bool first, bool with_tokens);

  AnswerShape shape_;
  std::string prefix_;  // "data: {"id":... up to the list of choices
  bool began_ = false;  // an event was made
  std::vector<ChoiceState> choices_;
};

/// One answer sent at once.
class WholeAnswer {
 public:
  WholeAnswer(AnswerShape shape, std::uint32_t num_choices);
  /// What one poll returned (none of it an error).
  void add(std::vector<ChoiceDelta> deltas);
  /// About what body() will take.
  [[nodiscard]] std::size_t estimated_bytes(const Generation& generation) const;
  [[nodiscard]] std::string body(const Generation& generation) const;

 private:
  AnswerShape shape_;
  std::vector<ChoiceDelta> choices_;  // joined
};

}  // namespace kvasir::server
