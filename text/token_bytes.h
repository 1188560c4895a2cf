// The bytes that each token of a vocabulary stands for, worked out once from its spelling. A
// library's decode would lose bytes that are not UTF-8 by themselves; this table never does.
#pragma once

#include "core/ids.h"
#include "text/vocabulary.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::text {

/// How a vocabulary spells bytes: GPT-2's letters for bytes, or SPM's U+2581 for a space and <0xNN>
/// for a byte.
enum class Spelling { kByteLevel, kSpm };

class TokenBytes {
 public:
  TokenBytes() = default;
  TokenBytes(const std::vector<std::string>& tokens, std::span<const TokenType> types,
             Spelling spelling);

  /// Bytes in generated text: empty for control tokens and for ids past the vocabulary.
  [[nodiscard]] std::string_view text_of(TokenId token) const;
  /// As text_of, with control tokens spelled out.
  [[nodiscard]] std::string_view spelled(TokenId token) const;
  /// Bytes of the longest token.
  [[nodiscard]] std::size_t longest() const { return longest_bytes_; }

 private:
  std::string bytes_;                   // of all tokens, one after another
  std::vector<std::uint32_t> offsets_;  // [vocab + 1] into bytes_
  std::vector<bool> silent_;            // [vocab]: leaves nothing in generated text
  std::size_t longest_bytes_ = 0;
};

}  // namespace kvasir::text
