#include "server/http/json_writer.h"

#include "core/check.h"
#include "core/logprob.h"

#include <array>
#include <charconv>
#include <cmath>

namespace kvasir::server {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

void append_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte != 0x7F) {
          out += c;
        } else {
          out += "\\u00";
          out += kHexDigits[byte >> 4U];
          out += kHexDigits[byte & 0xFU];
        }
      }
    }
  }
}

template <typename Float>
std::string shortest(Float number) {
  std::array<char, 48> digits{};
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  std::string text(digits.data(), result.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";  // a float to typed readers
  return text;
}

}  // namespace

void JsonWriter::separate() {
  if (needs_comma_) text_ += ',';
}

void JsonWriter::append(std::string_view value) {
  separate();
  text_ += value;
  needs_comma_ = true;
}

JsonWriter& JsonWriter::begin_object() {
  separate();
  text_ += '{';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::end_object() {
  text_ += '}';
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::begin_array() {
  separate();
  text_ += '[';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::end_array() {
  text_ += ']';
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  string(name);
  text_ += ':';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view text) {
  separate();
  text_ += '"';
  append_escaped(text_, text);
  text_ += '"';
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::integer(std::int64_t number) {
  append(std::to_string(number));
  return *this;
}

JsonWriter& JsonWriter::unsigned_integer(std::uint64_t number) {
  append(std::to_string(number));
  return *this;
}

JsonWriter& JsonWriter::number(double number) {
  KVASIR_CHECK(std::isfinite(number));
  append(shortest(number));
  return *this;
}

JsonWriter& JsonWriter::logprob(float number) {
  float shown = number;
  if (!(shown >= kOffListLogprob)) shown = kOffListLogprob;  // also for NaN, which JSON cannot say
  if (shown >= 0.0F) shown = 0.0F;  // rounding may end a hair above 0, and -0 is 0
  append(shortest(shown));
  return *this;
}

JsonWriter& JsonWriter::boolean(bool value) {
  append(value ? "true" : "false");
  return *this;
}

JsonWriter& JsonWriter::null() {
  append("null");
  return *this;
}

}  // namespace kvasir::server
