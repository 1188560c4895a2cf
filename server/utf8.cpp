#include "server/utf8.h"

#include "text/utf8.h"

#include <algorithm>

namespace kvasir::server {

std::size_t utf8_character_bytes(std::string_view bytes) {
  if (bytes.empty()) return 0;
  const text::Utf8Prefix prefix = text::utf8_prefix(bytes);
  return prefix.kind == text::Utf8Prefix::Kind::kCharacter ? prefix.size_bytes : 0;
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
  std::string replaced;
  replaced.reserve(bytes.size());
  while (!bytes.empty()) {
    const text::Utf8Prefix prefix = text::utf8_prefix(bytes);
    replaced += prefix.kind == text::Utf8Prefix::Kind::kCharacter
                    ? bytes.substr(0, prefix.size_bytes)
                    : std::string_view("\xEF\xBF\xBD");
    bytes.remove_prefix(prefix.size_bytes);
  }
  return replaced;
}

}  // namespace kvasir::server
