#include "text/incremental_decoder.h"

#include "text/utf8.h"

#include <cstddef>

namespace kvasir::text {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// Moves what is complete out of `pending`; an unfinished character at its end stays.
std::string take_complete(std::string& pending) {
  std::string text;
  std::size_t position = 0;
  while (position < pending.size()) {
    const std::string_view rest = std::string_view(pending).substr(position);
    const Utf8Prefix prefix = utf8_prefix(rest);
    if (prefix.kind == Utf8Prefix::Kind::kUnfinished) {
      break;
    }
    text += prefix.kind == Utf8Prefix::Kind::kCharacter ? rest.substr(0, prefix.size_bytes)
                                                        : kReplacement;
    position += prefix.size_bytes;
  }
  pending.erase(0, position);
  return text;
}

}  // namespace

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, bool with_special)
    : tokenizer_(tokenizer), with_special_(with_special) {}

std::string IncrementalDecoder::push(TokenId token) {
  pending_ +=
      with_special_ ? tokenizer_.token_bytes_with_special(token) : tokenizer_.token_bytes(token);
  return take_complete(pending_);
}

void IncrementalDecoder::finish() { pending_.clear(); }

}  // namespace kvasir::text
