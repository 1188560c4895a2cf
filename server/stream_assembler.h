// Tokens of one choice to text: whole characters, stop strings spread over tokens, logprob entries,
// counted tokens and the finish. It knows no engine and no wire format; running_generation feeds it
// and the doors print it.
#pragma once

#include "engine/events.h"
#include "server/generation.h"
#include "text/incremental_decoder.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvasir::server {

/// What the text of a choice depends on beside its tokens.
struct AssemblyRules {
  std::vector<std::string> stop;            // none empty, all UTF-8
  std::vector<TokenId> ending_token_ids;    // end of generation and the request's own: ascending
  std::vector<TokenId> own_stop_token_ids;  // the request's own: reported as stop_token; ascending
  std::uint64_t min_tokens = 0;             // stop strings count only in text of later tokens
  bool skip_special_tokens = true;          // false: control tokens are spelled out in the text
  bool include_stop_str_in_output = false;  // keep the stop string, or the stop token's text
  bool logprobs = false;
  bool token_ids = false;
};

/// Of the stop strings in a text, the one that is complete first ends it, whatever tokens the text
/// came in; of those complete at the same byte, the longest. Text that may yet become a stop string
/// is held back, and no more than that.
class StreamAssembler {
 public:
  /// `tokenizer` must outlive the assembler.
  StreamAssembler(const text::Tokenizer& tokenizer, AssemblyRules rules);

  /// Adds a token. Ignored once stopped(). True when this token completed a stop string.
  bool push(const engine::TokenEvent& event);
  /// The end, when no stop string ended it before: releases what was held back; a cut character is
  /// dropped. `reason` is kStop or kLength.
  void finish(FinishReason reason, std::optional<TokenId> stop_token);

  /// A stop string matched.
  [[nodiscard]] bool stopped() const { return stop_string_.has_value(); }
  /// Counted completion tokens: up to the one that completes a stop string, that one included.
  [[nodiscard]] std::uint32_t counted_tokens() const { return counted_tokens_; }

  /// What became ready since the last call; the finish is set once, when finish() was called
  /// before. Logprob entries and ids of tokens without finished text wait for the next call that
  /// has text, or for the finish.
  [[nodiscard]] ChoiceDelta take();

 private:
  [[nodiscard]] LogprobEntry logprob_entry(const engine::TokenEvent& event, bool ends) const;
  [[nodiscard]] TokenText token_text(TokenId token, float logprob) const;
  /// True when a stop string is complete in what is held back.
  bool match_stop();
  void release_harmless();

  const text::Tokenizer& tokenizer_;
  AssemblyRules rules_;
  text::IncrementalDecoder decoder_;
  std::string held_;   // whole characters that may yet become a stop string
  std::string ready_;  // text for the next take()
  std::vector<TokenId> token_ids_;
  std::vector<LogprobEntry> logprobs_;
  std::uint32_t counted_tokens_ = 0;
  std::optional<std::string> stop_string_;
  std::optional<TokenId> stop_token_;
  std::optional<FinishReason> finish_;
};

}  // namespace kvasir::server
