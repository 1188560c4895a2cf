#include "server/prompt_answer.h"

#include "core/check.h"
#include "server/utf8.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>
#include <variant>

namespace kvasir::server {
namespace {

constexpr std::size_t kNoToken = std::numeric_limits<std::size_t>::max();

/// The token that begins with the space which the tokeniser puts before a text and which is not in
/// it.
std::size_t stripped_token(const text::Tokenizer& tokenizer, std::span<const TokenId> tokens,
                           const EchoText& echo) {
  std::size_t bytes = 0;
  std::size_t first = kNoToken;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view of_token = echo.spells_control
                                          ? tokenizer.token_bytes_with_special(tokens[i])
                                          : tokenizer.token_bytes(tokens[i]);
    if (first == kNoToken && !of_token.empty()) first = i;
    bytes += of_token.size();
  }
  const bool begins_with_space =
      first != kNoToken && tokenizer.token_bytes(tokens[first]).starts_with(' ');
  return begins_with_space && bytes == echo.text.size() + 1 ? first : kNoToken;
}

}  // namespace

PromptRules prompt_rules(const GenerateParams& params) {
  PromptRules rules;
  if (params.echo) rules.echo_top = params.top_logprobs;
  rules.listed_top = params.prompt_logprobs;
  return rules;
}

EchoText echo_text(const PromptInput& prompt, const std::vector<TokenId>& tokens,
                   const text::Tokenizer& tokenizer, bool skip_special_tokens) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return {.text = *text};
  return {.text = tokenizer.decode(tokens, /*with_special=*/!skip_special_tokens,
                                   /*strip_space_prefix=*/true),
          .spells_control = !skip_special_tokens};
}

Result<void> check_prompt_logprobs(const PromptRules& rules,
                                   const std::vector<std::vector<TokenId>>& prompts,
                                   std::uint32_t choices_per_prompt, bool listed_once,
                                   std::uint64_t generated_entries) {
  if (!rules.wants_logprobs()) return {};
  std::uint64_t tokens = 0;
  for (const std::vector<TokenId>& prompt : prompts) tokens += prompt.size();
  std::uint64_t per_token = 0;
  if (rules.echo_top) per_token += choices_per_prompt * (std::uint64_t{1} + *rules.echo_top);
  if (rules.listed_top)
    per_token += (listed_once ? 1 : choices_per_prompt) * (std::uint64_t{1} + *rules.listed_top);
  const std::uint64_t entries = tokens * per_token + generated_entries;
  if (entries <= kMaxLogprobEntries) return {};
  const std::string param = rules.listed_top ? "prompt_logprobs" : "logprobs";
  return fail(ErrorCode::kInvalidValue,
              param + " of " + std::to_string(tokens) +
                  " prompt tokens and of the generated ones, in all choices together, are " +
                  std::to_string(entries) + ", more than " + std::to_string(kMaxLogprobEntries) +
                  " in one answer",
              param);
}

Result<void> check_echo(const PromptRules& rules, std::uint32_t choices_per_prompt,
                        std::uint64_t max_bytes) {
  std::uint64_t bytes = 0;
  for (const EchoText& echo : rules.echo) bytes += echo.text.size() * choices_per_prompt;
  if (bytes <= max_bytes) return {};
  return fail(ErrorCode::kInvalidValue,
              "echo of all prompts in all choices comes to " + std::to_string(bytes) +
                  " bytes, more than " + std::to_string(max_bytes) + " in one answer",
              "echo");
}

PromptAnswer::PromptAnswer(const text::Tokenizer& tokenizer, std::span<const TokenId> tokens,
                           const PromptRules& rules, const EchoText* echo)
    : tokenizer_(tokenizer),
      tokens_(tokens),
      rules_(rules),
      echo_(echo),
      stripped_token_(echo == nullptr ? kNoToken : stripped_token(tokenizer, tokens, *echo)) {
  if (!rules.wants_logprobs()) return;
  entries_.reserve(tokens.size());
  add_entry(0, {}, {});
  entries_.front().has_logprob = false;  // nothing is before it
}

void PromptAnswer::add(const PromptLogprobs& scores) {
  KVASIR_CHECK(scores.first_token == entries_.size(),
               "scores from token " << scores.first_token << " after " << entries_.size());
  KVASIR_CHECK(scores.first_token + scores.tokens.size() <= tokens_.size());
  for (std::size_t i = 0; i < scores.tokens.size(); ++i) {
    add_entry(scores.first_token + i, scores.tokens[i],
              std::span(scores.top).subspan(i * scores.num_top, scores.num_top));
  }
}

bool PromptAnswer::complete() const {
  return !rules_.wants_logprobs() || entries_.size() == tokens_.size();
}

bool PromptAnswer::echo_into(ChoiceDelta& delta) const {
  if (echo_ == nullptr) return false;
  std::string text = to_utf8(echo_->text);
  if (text.empty() && delta.text.empty() && !delta.finish) return false;
  delta.echo.text_bytes = text.size();
  delta.text.insert(0, text);
  if (!rules_.echo_top) return true;
  std::vector<LogprobEntry> entries;
  entries.reserve(entries_.size() + delta.logprobs.size());
  for (const LogprobEntry& entry : entries_) {
    LogprobEntry& copy = entries.emplace_back();
    copy.chosen = entry.chosen;
    copy.has_logprob = entry.has_logprob;
    copy.rank = entry.rank;
    const std::size_t shown = std::min<std::size_t>(entry.top.size(), *rules_.echo_top);
    copy.top.assign(entry.top.begin(), entry.top.begin() + static_cast<std::ptrdiff_t>(shown));
  }
  delta.echo.num_entries = entries.size();
  std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(entries));
  delta.logprobs = std::move(entries);
  return true;
}

void PromptAnswer::add_entry(std::size_t index, const PromptToken& score,
                             std::span<const TokenLogprob> top) {
  LogprobEntry& entry = entries_.emplace_back();
  entry.chosen = token_text(tokens_[index], score.logprob);
  if (index == stripped_token_) entry.chosen.bytes.remove_prefix(1);
  entry.rank = score.rank;
  entry.top.reserve(top.size());
  for (const TokenLogprob& each : top) entry.top.push_back(token_text(each.token, each.logprob));
}

TokenText PromptAnswer::token_text(TokenId token, float logprob) const {
  const std::string_view spelling = tokenizer_.token_bytes_with_special(token);
  const bool spelled = echo_ != nullptr && echo_->spells_control;
  return {.token = token,
          .logprob = logprob,
          .bytes = spelled ? spelling : tokenizer_.token_bytes(token),
          .spelling = spelling};
}

}  // namespace kvasir::server
