#include "text/utf8.h"

namespace kvasir::text {
namespace {

/// The form a character takes after its first byte. Only the second byte's range depends on the
/// first: it keeps out overlong forms, surrogates and what is past U+10FFFF.
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

}  // namespace

Utf8Prefix utf8_prefix(std::string_view bytes) {
  const Form form = form_of(static_cast<unsigned char>(bytes.front()));
  if (form.size_bytes == 0) return {Utf8Prefix::Kind::kIllFormed, 1};
  for (std::size_t i = 1; i < form.size_bytes; ++i) {
    if (i == bytes.size()) return {Utf8Prefix::Kind::kUnfinished, i};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const unsigned char low = i == 1 ? form.second_low : 0x80;
    const unsigned char high = i == 1 ? form.second_high : 0xBF;
    if (byte < low || byte > high) return {Utf8Prefix::Kind::kIllFormed, i};
  }
  return {Utf8Prefix::Kind::kCharacter, form.size_bytes};
}

}  // namespace kvasir::text
