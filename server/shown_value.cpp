#include "server/shown_value.h"

#include "server/utf8.h"

#include <array>
#include <charconv>
#include <cmath>

namespace kvasir::server {

std::string shown_value(std::string_view text) {
  constexpr std::size_t kMaxBytes = 64;
  const std::string_view head = text.substr(0, utf8_floor(text, kMaxBytes));
  std::string shown = "\"";
  for (const char c : head) {
    const auto byte = static_cast<unsigned char>(c);
    shown += (byte < 0x20 || byte == 0x7F) ? '?' : c;
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
