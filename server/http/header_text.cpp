#include "server/http/header_text.h"

#include <algorithm>
#include <cctype>

namespace kvasir::server {
namespace {

/// A parameter of a media type; what is malformed has no meaning and does no harm.
bool is_other_charset(std::string_view parameter) {
  const std::size_t equals = parameter.find('=');
  if (equals == std::string_view::npos) return false;
  std::string_view value = trimmed(parameter.substr(equals + 1));
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"')
    value = value.substr(1, value.size() - 2);
  return equal_ignoring_case(trimmed(parameter.substr(0, equals)), "charset") &&
         !equal_ignoring_case(value, "utf-8") && !equal_ignoring_case(value, "utf8");
}

}  // namespace

bool is_token_char(char c) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         kMarks.find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

bool is_json_type(std::string_view content_type) {
  if (content_type.empty()) return true;
  std::size_t semicolon = content_type.find(';');
  if (!equal_ignoring_case(trimmed(content_type.substr(0, semicolon)), "application/json"))
    return false;
  while (semicolon != std::string_view::npos) {
    content_type.remove_prefix(semicolon + 1);
    semicolon = content_type.find(';');
    if (is_other_charset(content_type.substr(0, semicolon))) return false;
  }
  return true;
}

}  // namespace kvasir::server
