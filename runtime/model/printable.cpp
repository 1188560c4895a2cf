#include "runtime/model/printable.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir::runtime {
namespace {

struct Character {
  std::size_t num_bytes = 1;
  std::uint32_t code_point = 0;
  bool valid = false;
};

// One character of UTF-8 at the front of `text`, which is not empty; a bad byte is one invalid
// character.
Character decode_front(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) {
    return {1, first, true};
  }
  const std::size_t num_bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < num_bytes) {
    return {};
  }
  std::uint32_t code_point = first & (0xFFU >> (num_bytes + 1));
  for (std::size_t i = 1; i < num_bytes; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) {
      return {};
    }
    code_point = (code_point << 6) | (byte(i) & 0x3FU);
  }
  const bool overlong =
      (num_bytes == 3 && code_point < 0x800) || (num_bytes == 4 && code_point < 0x10000);
  const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  if (overlong || surrogate || code_point > 0x10FFFF) {
    return {};
  }
  return {num_bytes, code_point, true};
}

bool is_control(std::uint32_t code_point) {
  return code_point < 0x20 || (code_point >= 0x7F && code_point <= 0x9F) ||
         (code_point >= 0x200E && code_point <= 0x200F) ||  // left-to-right and right-to-left marks
         (code_point >= 0x2028 && code_point <= 0x202E) ||  // separators, embeddings and overrides
         (code_point >= 0x2066 && code_point <= 0x2069);    // isolates
}

void append_escaped(std::string& out, std::string_view bytes) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : bytes) {
    const auto value = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\\') {
      out += "\\\\";
    } else {
      out += "\\x";
      out += kHex[value >> 4];
      out += kHex[value & 15U];
    }
  }
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_bytes) {
  std::string out;
  std::size_t position = 0;
  while (position < text.size()) {
    const Character character = decode_front(text.substr(position));
    if (position + character.num_bytes > max_bytes) {
      return out + "...";
    }
    const std::string_view bytes = text.substr(position, character.num_bytes);
    if (!character.valid || is_control(character.code_point) || character.code_point == '\\') {
      append_escaped(out, bytes);
    } else {
      out += bytes;
    }
    position += character.num_bytes;
  }
  return out;
}

}  // namespace kvasir::runtime
