#include "server/shown_value.h"

#include "server/utf8.h"

#include <array>
#include <charconv>
#include <cmath>

namespace kvasir::server {
namespace {

/// Bytes of a character at the front of `text` that is not shown as it is: it moves the cursor, or
/// turns the direction of what follows. 0 for all others.
std::size_t hidden_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x20 || byte(0) == 0x7F) return 1;
  if (text.size() >= 2 && byte(0) == 0xC2 && byte(1) >= 0x80 && byte(1) <= 0x9F) return 2;
  if (text.size() < 3 || byte(0) != 0xE2) return 0;
  const unsigned last = byte(2);
  const bool turns =
      (byte(1) == 0x80 && (last == 0x8E || last == 0x8F || (last >= 0xA8 && last <= 0xAE))) ||
      (byte(1) == 0x81 && last >= 0xA6 && last <= 0xA9);
  return turns ? 3 : 0;
}

}  // namespace

std::string shown_value(std::string_view text) {
  constexpr std::size_t kMaxBytes = 64;
  const std::string_view head = text.substr(0, utf8_floor(text, kMaxBytes));
  std::string shown = "\"";
  for (std::size_t i = 0; i < head.size();) {
    const std::size_t hidden = hidden_bytes(head.substr(i));
    shown += hidden > 0 ? '?' : head[i];
    i += hidden > 0 ? hidden : 1;
  }
  shown += head.size() < text.size() ? "...\"" : "\"";
  return shown;
}

std::string shown_value(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  std::array<char, 32> digits{};
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  return {digits.data(), result.ptr};
}

std::string shown_value(std::int64_t number) { return std::to_string(number); }

}  // namespace kvasir::server
