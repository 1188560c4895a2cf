// Text to token ids and back, over the `tokenizers` crate by way of text/bridge. Thread-safe once
// built. Streaming (whole UTF-8 characters only) is incremental_decoder's, templates are
// chat_template's.
#pragma once

#include "core/ids.h"
#include "core/result.h"
#include "text/vocabulary.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::text {

struct EncodeOptions {
  bool add_bos = false;        // put BOS in front if the model wants one, whatever the text spells
  bool parse_special = false;  // recognise control tokens in the text; false: they are plain text
};

/// A stretch of rendered text: either one control token of the template, or data tokenised whole
/// without recognition.
struct TextSegment {
  bool is_control = false;
  TokenId control_token = 0;  // when is_control
  std::string text;           // when not
};

/// Bytes [offset_bytes, offset_bytes + size_bytes) of a text spell a control token.
struct ControlSpelling {
  std::size_t offset_bytes = 0;
  std::size_t size_bytes = 0;
  TokenId token = 0;
};

class Tokenizer {
 public:
  /// Builds the tokenizer of a vocabulary. Errors: kInvalidModelFile naming what is wrong.
  [[nodiscard]] static Result<std::unique_ptr<Tokenizer>> create(const Vocabulary& vocabulary);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// `text` must be UTF-8. Errors: kInvalidValue for byte-level BPE over 500,000 white-space
  /// characters in a row; kInternal if the library fails.
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text,
                                                    const EncodeOptions& options) const;
  /// Tokens of a rendered chat prompt: each data stretch whole, control tokens as themselves. BOS
  /// is not added when the first segment already is BOS.
  [[nodiscard]] Result<std::vector<TokenId>> encode_segments(std::span<const TextSegment> segments,
                                                             bool add_bos) const;

  /// Spellings of control tokens in a text, ascending and disjoint: leftmost first, the longest of
  /// those.
  [[nodiscard]] Result<std::vector<ControlSpelling>> find_control(std::string_view text) const;
  /// The text cut at the control tokens spelled in it; no empty data stretches.
  [[nodiscard]] Result<std::vector<TextSegment>> split_at_control(std::string_view text) const;

  /// The bytes a token stands for in generated text; empty for control tokens (unless
  /// with_special). Ids past the vocabulary (padded logits) have none.
  [[nodiscard]] std::string_view token_bytes(TokenId token) const;
  /// As token_bytes, but control tokens are spelled out.
  [[nodiscard]] std::string_view token_bytes_with_special(TokenId token) const;
  /// Bytes of a whole sequence; SPM: the space that the space prefix put at the very start of a
  /// text is kept out when `strip_space_prefix`. Not necessarily UTF-8.
  [[nodiscard]] std::string decode(std::span<const TokenId> tokens, bool with_special,
                                   bool strip_space_prefix) const;

  /// Control tokens and the unknown token: they leave nothing in generated text, and text spells
  /// them only on purpose.
  [[nodiscard]] bool is_control(TokenId token) const;
  [[nodiscard]] std::size_t vocabulary_size() const;
  /// Bytes of the longest token: a text of more than context * this can be refused before
  /// tokenising.
  [[nodiscard]] std::size_t longest_token_bytes() const;
  /// End-of-generation ids: the file's eos, eot and eom, plus a documented list by spelling;
  /// ascending.
  [[nodiscard]] const std::vector<TokenId>& end_of_generation() const;
  [[nodiscard]] std::optional<TokenId> bos() const;
  [[nodiscard]] std::optional<TokenId> eos() const;
  [[nodiscard]] bool adds_bos() const;
  /// Id of a control token by its exact spelling.
  [[nodiscard]] std::optional<TokenId> control_token(std::string_view spelling) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::text
