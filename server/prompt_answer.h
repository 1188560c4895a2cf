// What an answer tells of one prompt: its text and its tokens' logprobs, as `echo` puts them before
// each choice and as `prompt_logprobs` lists them. The engine's numbers come in pieces;
// running_generation adds them and the doors print what is made of them here.
#pragma once

#include "core/ids.h"
#include "core/result.h"
#include "core/step_plan.h"
#include "server/generation.h"
#include "server/request_fields.h"
#include "server/validate.h"
#include "text/tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvasir::server {

/// The text of an echoed prompt.
struct EchoText {
  std::string text;             // bytes as given, or as the token ids decode: not always UTF-8
  bool spells_control = false;  // it has the spellings of the prompt's control tokens in it
};

/// What all prompts of a request show. By default nothing.
struct PromptRules {
  std::vector<EchoText> echo;               // [prompts], or empty: no echo
  std::optional<std::uint32_t> echo_top;    // best tokens beside each echoed one; absent: no
                                            // logprobs of echoed tokens
  std::optional<std::uint32_t> listed_top;  // the same of prompt_logprobs
  [[nodiscard]] bool wants_logprobs() const {
    return echo_top.has_value() || listed_top.has_value();
  }
  /// What the engine is asked for: enough for both.
  [[nodiscard]] std::optional<std::uint32_t> most_top() const {
    return std::max(echo_top, listed_top);  // absent is less than any
  }
};

/// What `params` ask for, the echoed texts still missing.
[[nodiscard]] PromptRules prompt_rules(const GenerateParams& params);
/// A prompt's text as echo shows it: that of token ids is what they decode to.
[[nodiscard]] EchoText echo_text(const PromptInput& prompt, const std::vector<TokenId>& tokens,
                                 const text::Tokenizer& tokenizer, bool skip_special_tokens);
/// All logprobs that an answer shows are kept until it is sent, so their number is bounded
/// (kMaxLogprobEntries): those of prompts, which each choice shows or, with `listed_once`, the
/// whole answer, and `generated_entries`. Errors: kInvalidValue.
[[nodiscard]] Result<void> check_prompt_logprobs(const PromptRules& rules,
                                                 const std::vector<std::vector<TokenId>>& prompts,
                                                 std::uint32_t choices_per_prompt, bool listed_once,
                                                 std::uint64_t generated_entries);
/// Every choice has the text of its prompt in it. Errors: kInvalidValue when they come to more than
/// `max_bytes` together.
[[nodiscard]] Result<void> check_echo(const PromptRules& rules, std::uint32_t choices_per_prompt,
                                      std::uint64_t max_bytes);

class PromptAnswer {
 public:
  /// `echo` may be null. All that is passed by reference must outlive the answer.
  PromptAnswer(const text::Tokenizer& tokenizer, std::span<const TokenId> tokens,
               const PromptRules& rules, const EchoText* echo);

  /// The next piece of what the engine tells.
  void add(const PromptLogprobs& scores);
  /// Nothing is missing any more: choices may begin.
  [[nodiscard]] bool complete() const;
  /// One for each token of the prompt, the first without a logprob; empty when none are wanted.
  [[nodiscard]] const std::vector<LogprobEntry>& entries() const { return entries_; }

  /// Puts the echoed prompt before a choice's first delta. False, and nothing done, when there is
  /// none, or nothing yet that it could travel with.
  bool echo_into(ChoiceDelta& delta) const;

 private:
  [[nodiscard]] TokenText token_text(TokenId token, float logprob) const;
  void add_entry(std::size_t index, const PromptToken& score, std::span<const TokenLogprob> top);

  const text::Tokenizer& tokenizer_;
  std::span<const TokenId> tokens_;
  const PromptRules& rules_;
  const EchoText* echo_;
  std::size_t stripped_token_;  // its first byte, a space, is not in the echoed text; or no token's
  std::vector<LogprobEntry> entries_;
};

}  // namespace kvasir::server
