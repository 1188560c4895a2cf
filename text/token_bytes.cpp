#include "text/token_bytes.h"

#include "core/check.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>

namespace kvasir::text {

namespace {

constexpr std::string_view kSpmSpace = "\xE2\x96\x81";  // U+2581

// GPT-2 writes the bytes that print in Latin-1 as themselves and the other 68 as U+0100 and on, in
// ascending order.
constexpr std::size_t kNumLetters = 256 + 68;

constexpr bool prints_as_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

/// Byte of each letter U+0000..U+0143; -1 where there is none.
constexpr std::array<int, kNumLetters> bytes_of_letters() {
  std::array<int, kNumLetters> bytes{};
  bytes.fill(-1);
  std::size_t next_letter = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::size_t letter = prints_as_itself(byte) ? byte : next_letter++;
    bytes[letter] = static_cast<int>(byte);
  }
  return bytes;
}
constexpr std::array<int, kNumLetters> kBytesOfLetters = bytes_of_letters();

/// All letters are below U+0800, so one or two bytes of UTF-8 each; nothing when the spelling has
/// another letter.
std::optional<std::string> from_byte_letters(std::string_view spelling) {
  std::string bytes;
  for (std::size_t i = 0; i < spelling.size();) {
    const auto lead = static_cast<unsigned char>(spelling[i]);
    std::size_t letter = lead;
    std::size_t length = 1;
    if (lead >= 0x80) {
      if ((lead & 0xE0U) != 0xC0U || i + 1 >= spelling.size()) {
        return std::nullopt;
      }
      letter = ((lead & 0x1FU) << 6U) | (static_cast<unsigned char>(spelling[i + 1]) & 0x3FU);
      length = 2;
    }
    if (letter >= kNumLetters || kBytesOfLetters[letter] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kBytesOfLetters[letter]));
    i += length;
  }
  return bytes;
}

std::string with_plain_spaces(std::string_view spelling) {
  std::string text;
  for (std::size_t i = 0; i < spelling.size();) {
    if (spelling.substr(i).starts_with(kSpmSpace)) {
      text.push_back(' ');
      i += kSpmSpace.size();
    } else {
      text.push_back(spelling[i++]);
    }
  }
  return text;
}

/// "<0x0A>" to its byte.
std::optional<std::string> from_hex_spelling(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling.back() != '>') {
    return std::nullopt;
  }
  std::uint8_t byte = 0;
  const char* digits = spelling.data() + 3;
  const auto [end, error] = std::from_chars(digits, digits + 2, byte, 16);
  if (error != std::errc{} || end != digits + 2) {
    return std::nullopt;
  }
  return std::string(1, static_cast<char>(byte));
}

std::string bytes_of(const std::string& token, TokenType type, Spelling spelling) {
  if (type == TokenType::kControl || type == TokenType::kUnknown) {
    return token;
  }
  if (spelling == Spelling::kSpm) {
    return type == TokenType::kByte ? from_hex_spelling(token).value_or(token)
                                    : with_plain_spaces(token);
  }
  // User-defined tokens of byte-level vocabularies are spelled as they read.
  return type == TokenType::kUserDefined ? token : from_byte_letters(token).value_or(token);
}

}  // namespace

TokenBytes::TokenBytes(const std::vector<std::string>& tokens, std::span<const TokenType> types,
                       Spelling spelling)
    : silent_(tokens.size()) {
  KVASIR_CHECK(tokens.size() == types.size());
  offsets_.reserve(tokens.size() + 1);
  offsets_.push_back(0);
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const std::string bytes = bytes_of(tokens[id], types[id], spelling);
    silent_[id] = types[id] == TokenType::kControl || types[id] == TokenType::kUnknown;
    longest_bytes_ = std::max(longest_bytes_, bytes.size());
    bytes_ += bytes;
    KVASIR_CHECK(bytes_.size() <= std::numeric_limits<std::uint32_t>::max());
    offsets_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  }
  bytes_.shrink_to_fit();
}

std::string_view TokenBytes::spelled(TokenId token) const {
  if (token >= silent_.size()) {
    return {};
  }
  return std::string_view(bytes_).substr(offsets_[token], offsets_[token + 1] - offsets_[token]);
}

std::string_view TokenBytes::text_of(TokenId token) const {
  return token < silent_.size() && !silent_[token] ? spelled(token) : std::string_view{};
}

}  // namespace kvasir::text
