#include "server/utf8.h"

#include <algorithm>
#include <cstdint>

namespace kvasir::server {
namespace {

struct Lead {
  std::size_t length = 0;  // of the whole character; 0: not a lead byte
  unsigned char second_min =
      0x80;  // the second byte has its own range: no overlong forms, no surrogates
  unsigned char second_max = 0xBF;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte >= 0xC2 && byte <= 0xDF) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

/// Bytes of the longest start of `text` that could be the start of one character; `whole` says
/// whether it is one.
std::size_t maximal_part(std::string_view text, bool& whole) {
  whole = false;
  if (text.empty()) return 0;
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  if (lead.length == 0) return 1;
  std::size_t length = 1;
  while (length < lead.length && length < text.size()) {
    const auto byte = static_cast<unsigned char>(text[length]);
    const unsigned char low = length == 1 ? lead.second_min : 0x80;
    const unsigned char high = length == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) break;
    ++length;
  }
  whole = length == lead.length;
  return length;
}

}  // namespace

std::size_t utf8_character_bytes(std::string_view text) {
  bool whole = false;
  const std::size_t length = maximal_part(text, whole);
  return whole ? length : 0;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_character_bytes(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::size_t utf8_floor(std::string_view text, std::size_t max_bytes) {
  std::size_t end = std::min(max_bytes, text.size());
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U)
    --end;
  return end;
}

std::string to_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    bool whole = false;
    const std::size_t length = maximal_part(bytes, whole);
    text += whole ? bytes.substr(0, length) : std::string_view("\xEF\xBF\xBD");
    bytes.remove_prefix(length);
  }
  return text;
}

}  // namespace kvasir::server
