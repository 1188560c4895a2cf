#include "text/incremental_decoder.h"

#include <algorithm>
#include <cstddef>

namespace kvasir::text {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// What the bytes at the start of a text are.
struct Prefix {
  enum class Kind { kCharacter, kUnfinished, kIllFormed };
  Kind kind = Kind::kCharacter;
  std::size_t size_bytes = 0;  // of the character, or of the maximal ill-formed part
};

/// The form a character takes after its first byte. Only the second byte's range depends on the
/// first (Unicode 15, table 3-7): it keeps out overlong forms, surrogates and what is past
/// U+10FFFF.
struct Form {
  std::size_t size_bytes = 0;  // 0: the byte begins no character
  unsigned char second_low = 0x80;
  unsigned char second_high = 0xBF;
};

Form form_of(unsigned char lead) {
  if (lead < 0x80) return {1};
  if (lead >= 0xC2 && lead <= 0xDF) return {2};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead >= 0xE1 && lead <= 0xEF) return {3};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead >= 0xF1 && lead <= 0xF3) return {4};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

Prefix first_of(std::string_view bytes) {
  const Form form = form_of(static_cast<unsigned char>(bytes.front()));
  if (form.size_bytes == 0) {
    return {Prefix::Kind::kIllFormed, 1};
  }
  for (std::size_t i = 1; i < form.size_bytes; ++i) {
    if (i == bytes.size()) {
      return {Prefix::Kind::kUnfinished, i};
    }
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const bool second = i == 1;
    if (byte < (second ? form.second_low : 0x80) || byte > (second ? form.second_high : 0xBF)) {
      return {Prefix::Kind::kIllFormed, i};
    }
  }
  return {Prefix::Kind::kCharacter, form.size_bytes};
}

/// Moves what is complete out of `pending`; an unfinished character at its end stays.
std::string take_complete(std::string& pending) {
  std::string text;
  std::size_t position = 0;
  while (position < pending.size()) {
    const std::string_view rest = std::string_view(pending).substr(position);
    const Prefix prefix = first_of(rest);
    if (prefix.kind == Prefix::Kind::kUnfinished) {
      break;
    }
    text +=
        prefix.kind == Prefix::Kind::kCharacter ? rest.substr(0, prefix.size_bytes) : kReplacement;
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
