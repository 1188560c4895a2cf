// Tokens of one stream to text, piece by piece: never half a UTF-8 character, joined pieces equal
// the whole. Stop strings are server/stream_assembler's.
#pragma once

#include "core/ids.h"
#include "text/tokenizer.h"

#include <string>
#include <string_view>

namespace kvasir::text {

class IncrementalDecoder {
 public:
  /// `tokenizer` must outlive the decoder. `with_special` spells control tokens out.
  explicit IncrementalDecoder(const Tokenizer& tokenizer, bool with_special = false);

  /// Adds a token and returns the text that is now complete; bytes of an unfinished character are
  /// held back. Bytes that can never become UTF-8 are replaced by U+FFFD, one for each maximal
  /// ill-formed part (Unicode 15, 3.9, U+FFFD substitution).
  [[nodiscard]] std::string push(TokenId token);
  /// The end: a character cut by the end is dropped, never replaced.
  void finish();
  /// Bytes held back now.
  [[nodiscard]] std::string_view pending() const { return pending_; }

 private:
  const Tokenizer& tokenizer_;
  bool with_special_ = false;
  std::string pending_;
};

}  // namespace kvasir::text
