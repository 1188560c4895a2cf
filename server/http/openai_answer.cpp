#include "server/http/openai_answer.h"

#include "core/check.h"
#include "server/error_map.h"
#include "server/http/facts_json.h"
#include "server/utf8.h"
#include "text/utf8.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvasir::server {
namespace {

constexpr std::string_view kDataPrefix = "data: ";
constexpr std::string_view kEventEnd = "\n\n";

/// Usage so far has no receipt: that is of what has ended.
enum class UsagePart : std::uint8_t { kSoFar, kComplete };

void write_usage(const Usage& usage, UsagePart part, JsonWriter& json) {
  json.begin_object();
  json.member("prompt_tokens", usage.prompt_tokens);
  json.member("completion_tokens", usage.completion_tokens);
  json.member("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details")
      .begin_object()
      .member("cached_tokens", usage.cached_tokens)
      .end_object();
  json.key("completion_tokens_details").begin_object().member("reasoning_tokens", 0).end_object();
  if (part == UsagePart::kComplete && usage.kv_cache) {
    json.key("kv_cache");
    write_kv_receipt(*usage.kv_cache, json);
  }
  json.end_object();
}

void write_ids(const std::vector<TokenId>& ids, JsonWriter& json) {
  json.begin_array();
  for (const TokenId id : ids) json.unsigned_integer(id);
  json.end_array();
}

void write_bytes(std::string_view bytes, JsonWriter& json) {
  json.begin_array();
  for (const char c : bytes) json.unsigned_integer(static_cast<unsigned char>(c));
  json.end_array();
}

void write_finish_reason(FinishReason reason, JsonWriter& json) {
  KVASIR_CHECK(reason == FinishReason::kStop || reason == FinishReason::kLength);
  json.string(reason == FinishReason::kStop ? "stop" : "length");
}

void write_stop_reason(const ChoiceDelta& choice, JsonWriter& json) {
  json.key("stop_reason");
  if (choice.stop_string) {
    json.string(*choice.stop_string);
  } else if (choice.stop_token) {
    json.unsigned_integer(*choice.stop_token);
  } else {
    json.null();
  }
}

void write_chat_token(const TokenText& token, JsonWriter& json) {
  json.member("token", printed_token(token));
  json.key("logprob").logprob(token.logprob);
  json.key("bytes");
  write_bytes(token.bytes, json);
}

void write_chat_logprobs(const std::vector<LogprobEntry>& entries, JsonWriter& json) {
  json.begin_object().key("content").begin_array();
  for (const LogprobEntry& entry : entries) {
    json.begin_object();
    write_chat_token(entry.chosen, json);
    json.key("top_logprobs").begin_array();
    for (const TokenText& top : entry.top) {
      json.begin_object();
      write_chat_token(top, json);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().key("refusal").null().end_object();
}

/// The best tokens and, where it is not among them, the sampled one. Two tokens may print alike:
/// the better one stays.
void write_top_map(const LogprobEntry& entry, JsonWriter& json) {
  std::vector<std::pair<std::string, float>> shown;
  const auto add = [&shown](const TokenText& token) {
    std::string name = printed_token(token);
    for (const auto& [known, logprob] : shown) {
      if (known == name) return;
    }
    shown.emplace_back(std::move(name), token.logprob);
  };
  for (const TokenText& top : entry.top) add(top);
  add(entry.chosen);
  json.begin_object();
  for (const auto& [name, logprob] : shown) json.key(name).logprob(logprob);
  json.end_object();
}

std::uint64_t count_characters(std::string_view text) {
  std::uint64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1U : 0U;
  return count;
}

/// Offsets of an echoed prompt's tokens stay within its text, and those of what follows are counted
/// from its end: a tokeniser may have changed the text that it was given.
void write_text_offsets(const ChoiceDelta& delta, TextPosition& position, JsonWriter& json) {
  const std::uint64_t prompt_end =
      count_characters(std::string_view(delta.text).substr(0, delta.echo.text_bytes));
  json.begin_array();
  for (std::size_t i = 0; i < delta.logprobs.size(); ++i) {
    const bool of_prompt = i < delta.echo.num_entries;
    if (i == delta.echo.num_entries && i > 0) position.move_to(prompt_end);
    const std::uint64_t offset = position.advance(delta.logprobs[i].chosen.bytes);
    json.unsigned_integer(of_prompt ? std::min(offset, prompt_end) : offset);
  }
  // What follows may come with another delta.
  if (delta.echo.num_entries > 0 && delta.echo.num_entries == delta.logprobs.size())
    position.move_to(prompt_end);
  json.end_array();
}

void write_completion_logprobs(const ChoiceDelta& delta, TextPosition& position, JsonWriter& json) {
  const std::vector<LogprobEntry>& entries = delta.logprobs;
  json.begin_object();
  json.key("tokens").begin_array();
  for (const LogprobEntry& entry : entries) json.string(printed_token(entry.chosen));
  json.end_array().key("token_logprobs").begin_array();
  for (const LogprobEntry& entry : entries) {
    if (entry.has_logprob) {
      json.logprob(entry.chosen.logprob);
    } else {
      json.null();
    }
  }
  json.end_array().key("top_logprobs").begin_array();
  for (const LogprobEntry& entry : entries) {
    if (entry.has_logprob) {
      write_top_map(entry, json);
    } else {
      json.null();
    }
  }
  json.end_array().key("text_offset");
  write_text_offsets(delta, position, json);
  json.end_object();
}

void write_ranked(const TokenText& token, std::uint64_t rank, JsonWriter& json) {
  json.key(std::to_string(token.token)).begin_object();
  json.key("logprob").logprob(token.logprob);
  json.member("rank", rank).member("decoded_token", printed_token(token)).end_object();
}

/// [null, {"id":{"logprob":..,"rank":..,"decoded_token":".."}, ...}, ...]: of each token of the
/// prompt itself, then the best ones.
void write_prompt_logprobs(const Generation& generation, std::size_t prompt, JsonWriter& json) {
  json.begin_array();
  for (const LogprobEntry& entry : generation.prompt_logprobs(prompt)) {
    if (!entry.has_logprob) {
      json.null();
      continue;
    }
    json.begin_object();
    write_ranked(entry.chosen, entry.rank, json);
    const std::size_t listed =
        std::min<std::size_t>(*generation.listed_prompt_top(), entry.top.size());
    for (std::size_t i = 0; i < listed; ++i) {
      if (entry.top[i].token != entry.chosen.token) write_ranked(entry.top[i], i + 1, json);
    }
    json.end_object();
  }
  json.end_array();
}

/// {"id":..,"object":..,"created":..,"model":..,"system_fingerprint":..,"choices":[
std::string answer_prefix(const AnswerShape& shape, std::string_view object) {
  JsonWriter json;
  json.begin_object()
      .member("id", shape.id)
      .member("object", object)
      .key("created")
      .integer(shape.created);
  json.member("model", shape.model).member("system_fingerprint", shape.system_fingerprint);
  json.key("choices").begin_array();
  return json.take();
}

/// What a choice of a completion tells of its prompt.
void write_prompt_of_choice(const AnswerShape& shape, const Generation& generation,
                            std::uint32_t choice_index, JsonWriter& json) {
  const std::size_t prompt = choice_index / shape.choices_per_prompt;
  if (generation.listed_prompt_top()) {
    json.key("prompt_logprobs");
    write_prompt_logprobs(generation, prompt, json);
  }
  if (!shape.return_token_ids) return;
  json.key("prompt_token_ids");
  write_ids(generation.prompt_token_ids().at(prompt), json);
}

/// What a chat's answer tells of its one prompt, as further members of the answer.
std::string prompt_of_chat(const AnswerShape& shape, const Generation& generation) {
  std::string out;
  if (generation.listed_prompt_top()) {
    JsonWriter logprobs;
    write_prompt_logprobs(generation, 0, logprobs);
    out += ",\"prompt_logprobs\":" + logprobs.text();
  }
  if (shape.return_token_ids) {
    JsonWriter ids;
    write_ids(generation.prompt_token_ids().front(), ids);
    out += ",\"prompt_token_ids\":" + ids.text();
  }
  return out;
}

constexpr std::size_t kBytesPerLogprob = 80;  // about, of a short token in chat's form
constexpr std::size_t kBytesPerTokenId = 6;

/// About what one prompt's list of logprobs takes; 0 when none is wanted.
std::size_t listed_prompt_bytes(const Generation& generation, std::size_t prompt) {
  const std::optional<std::uint32_t> top = generation.listed_prompt_top();
  if (!top) return 0;
  return generation.prompt_token_ids()[prompt].size() * (1 + *top) * kBytesPerLogprob;
}

/// About what one prompt's ids take.
std::size_t prompt_id_bytes(const Generation& generation, std::size_t prompt) {
  return generation.prompt_token_ids()[prompt].size() * kBytesPerTokenId;
}

/// About what is made of a delta.
std::size_t delta_bytes(const ChoiceDelta& delta) {
  std::size_t bytes = delta.text.size() + delta.token_ids.size() * kBytesPerTokenId;
  for (const LogprobEntry& entry : delta.logprobs)
    bytes += (1 + entry.top.size()) * kBytesPerLogprob;
  return bytes;
}

std::string_view stream_object(Endpoint endpoint) {
  return endpoint == Endpoint::kChat ? "chat.completion.chunk" : "text_completion";
}

}  // namespace

std::string error_body(const Error& error) {
  const ErrorMapping& mapping = error_mapping(error.code);
  JsonWriter json;
  json.begin_object().key("error").begin_object();
  // Of our own failures the client learns that they are ours, and no more.
  json.member("message", mapping.http_status == 500 ? std::string_view("internal error")
                                                    : std::string_view(error.message));
  json.member("type", mapping.type);
  json.key("param");
  if (error.param.empty()) {
    json.null();
  } else {
    json.string(error.param);
  }
  json.member("code", mapping.code).end_object().end_object();
  return json.take();
}

std::string error_event(const Error& error) {
  return std::string(kDataPrefix) + error_body(error) + std::string(kEventEnd);
}

std::string printed_token(const TokenText& token) {
  if (is_utf8(token.spelling)) return std::string(token.spelling);
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string text = "bytes:";
  for (const char c : token.spelling) {
    const auto byte = static_cast<unsigned char>(c);
    text += "\\x";
    text += kHexDigits[byte >> 4U];
    text += kHexDigits[byte & 0xFU];
  }
  return text;
}

std::uint64_t TextPosition::advance(std::string_view bytes) {
  const std::size_t first_byte = unfinished_.size();
  unfinished_ += bytes;
  std::uint64_t offset = characters_;
  std::size_t decoded = 0;
  while (decoded < unfinished_.size()) {
    const text::Utf8Prefix prefix =
        text::utf8_prefix(std::string_view(unfinished_).substr(decoded));
    // The last character that begins at or before the token's first byte is the one it begins in.
    if (decoded <= first_byte) offset = characters_;
    if (prefix.kind == text::Utf8Prefix::Kind::kUnfinished) break;
    decoded += prefix.size_bytes;
    ++characters_;  // of an ill-formed part, its U+FFFD
  }
  unfinished_.erase(0, decoded);
  return offset;
}

void TextPosition::move_to(std::uint64_t characters) {
  characters_ = characters;
  unfinished_.clear();
}

void LogprobWriter::write(Endpoint endpoint, const ChoiceDelta& delta, JsonWriter& json) {
  if (endpoint == Endpoint::kChat) {
    write_chat_logprobs(delta.logprobs, json);
  } else {
    write_completion_logprobs(delta, position_, json);
  }
}

StreamAnswer::StreamAnswer(AnswerShape shape, std::uint32_t num_choices)
    : shape_(std::move(shape)),
      prefix_(std::string(kDataPrefix) + answer_prefix(shape_, stream_object(shape_.endpoint))),
      choices_(num_choices) {}

std::size_t StreamAnswer::estimated_bytes(const std::vector<ChoiceDelta>& deltas,
                                          const Generation& generation) const {
  std::size_t bytes = 0;
  for (const ChoiceDelta& delta : deltas) {
    bytes += delta_bytes(delta);
    if (choices_.at(delta.choice_index).began) continue;
    const std::size_t prompt = delta.choice_index / shape_.choices_per_prompt;
    bytes += listed_prompt_bytes(generation, prompt);  // comes with the first event
    if (shape_.return_token_ids) bytes += prompt_id_bytes(generation, prompt);
  }
  return bytes;
}

std::string StreamAnswer::events(const std::vector<ChoiceDelta>& deltas,
                                 const Generation& generation) {
  std::string out;
  for (const ChoiceDelta& delta : deltas) {
    const bool began = choices_.at(delta.choice_index).began;
    if (!began && shape_.endpoint == Endpoint::kChat)
      append_event(out, Part::kRole, delta, generation);
    if (!delta.text.empty()) append_event(out, Part::kContent, delta, generation);
    if (delta.finish) append_event(out, Part::kFinish, delta, generation);
  }
  return out;
}

void StreamAnswer::append_event(std::string& out, Part part, const ChoiceDelta& delta,
                                const Generation& generation) {
  ChoiceState& state = choices_[delta.choice_index];
  const bool first = !std::exchange(state.began, true);
  const bool first_of_all = !std::exchange(began_, true);
  // Entries and ids go with the text if there is any, else with the finish.
  const bool with_tokens = part == Part::kContent || (part == Part::kFinish && delta.text.empty());
  JsonWriter json;
  write_choice(json, part, delta, generation, first, with_tokens);
  out += prefix_;
  out += json.text();
  out += ']';
  if (first_of_all && shape_.endpoint == Endpoint::kChat) out += prompt_of_chat(shape_, generation);
  if (shape_.continuous_usage_stats) {
    JsonWriter usage;
    write_usage(generation.usage(), UsagePart::kSoFar, usage);
    out += ",\"usage\":" + usage.text();
  } else if (shape_.include_usage) {
    out += ",\"usage\":null";
  }
  out += '}';
  out += kEventEnd;
}

void StreamAnswer::write_choice(JsonWriter& json, Part part, const ChoiceDelta& delta,
                                const Generation& generation, bool first, bool with_tokens) {
  json.begin_object().member("index", delta.choice_index);
  const std::string_view text =
      part == Part::kContent ? std::string_view(delta.text) : std::string_view();
  if (shape_.endpoint == Endpoint::kCompletions) {
    json.member("text", text);
  } else {
    json.key("delta").begin_object();
    if (part == Part::kRole) json.member("role", "assistant");
    if (part != Part::kFinish) json.member("content", text);
    json.end_object();
  }
  json.key("logprobs");
  if (shape_.logprobs && with_tokens && !delta.logprobs.empty()) {
    choices_[delta.choice_index].logprobs.write(shape_.endpoint, delta, json);
  } else {
    json.null();
  }
  json.key("finish_reason");
  if (part == Part::kFinish) {
    write_finish_reason(*delta.finish, json);
    write_stop_reason(delta, json);
  } else {
    json.null();
  }
  if (shape_.return_token_ids) {
    // In every chunk, so that a client may join them unseen: which chunk has the last ids depends
    // on when it was made.
    json.key("token_ids");
    write_ids(with_tokens ? delta.token_ids : std::vector<TokenId>(), json);
  }
  if (first && shape_.endpoint == Endpoint::kCompletions)
    write_prompt_of_choice(shape_, generation, delta.choice_index, json);
  json.end_object();
}

std::string StreamAnswer::end(const Usage& usage) const {
  std::string out;
  if (shape_.include_usage) {
    JsonWriter json;
    write_usage(usage, UsagePart::kComplete, json);
    out += prefix_ + "],\"usage\":" + json.text() + "}" + std::string(kEventEnd);
  }
  out += "data: [DONE]\n\n";
  return out;
}

WholeAnswer::WholeAnswer(AnswerShape shape, std::uint32_t num_choices)
    : shape_(std::move(shape)), choices_(num_choices) {
  for (std::uint32_t i = 0; i < num_choices; ++i) choices_[i].choice_index = i;
}

void WholeAnswer::add(std::vector<ChoiceDelta> deltas) {
  for (ChoiceDelta& delta : deltas) {
    ChoiceDelta& choice = choices_.at(delta.choice_index);
    if (delta.echo.text_bytes > 0 || delta.echo.num_entries > 0) choice.echo = delta.echo;
    choice.text += delta.text;
    choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(choice.logprobs));
    if (!delta.finish) continue;
    choice.finish = delta.finish;
    choice.stop_string = std::move(delta.stop_string);
    choice.stop_token = delta.stop_token;
  }
}

std::size_t WholeAnswer::estimated_bytes(const Generation& generation) const {
  std::size_t bytes = 0;
  const std::size_t num_lists = shape_.endpoint == Endpoint::kChat ? 1 : shape_.choices_per_prompt;
  for (std::size_t p = 0; p < generation.prompt_token_ids().size(); ++p)
    bytes += num_lists * (listed_prompt_bytes(generation, p) +
                          (shape_.return_token_ids ? prompt_id_bytes(generation, p) : 0));
  for (const ChoiceDelta& choice : choices_) bytes += delta_bytes(choice);
  return bytes;
}

std::string WholeAnswer::body(const Generation& generation) const {
  const bool chat = shape_.endpoint == Endpoint::kChat;
  JsonWriter json;
  for (const ChoiceDelta& choice : choices_) {
    json.begin_object().member("index", choice.choice_index);
    if (chat) {
      json.key("message").begin_object().member("role", "assistant").member("content", choice.text);
      json.key("refusal").null().end_object();
    } else {
      json.member("text", choice.text);
    }
    json.key("logprobs");
    if (shape_.logprobs) {
      LogprobWriter().write(shape_.endpoint, choice, json);
    } else {
      json.null();
    }
    json.key("finish_reason");
    write_finish_reason(choice.finish.value(), json);
    write_stop_reason(choice, json);
    if (shape_.return_token_ids) {
      json.key("token_ids");
      write_ids(choice.token_ids, json);
    }
    if (!chat) write_prompt_of_choice(shape_, generation, choice.choice_index, json);
    json.end_object();
  }
  std::string out =
      answer_prefix(shape_, chat ? "chat.completion" : "text_completion") + json.take() + "]";
  if (chat) out += prompt_of_chat(shape_, generation);
  JsonWriter usage;
  write_usage(generation.usage(), UsagePart::kComplete, usage);
  return out + ",\"usage\":" + usage.text() + "}";
}

}  // namespace kvasir::server
