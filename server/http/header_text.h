// How the values of HTTP fields are read: tokens, case, white space, media types. Which fields
// there are is request_framing's.
#pragma once

#include <string_view>

namespace kvasir::server {

[[nodiscard]] bool is_token_char(char c);
[[nodiscard]] bool is_token(std::string_view text);
[[nodiscard]] bool equal_ignoring_case(std::string_view a, std::string_view b);
/// Without the spaces and tabs around it.
[[nodiscard]] std::string_view trimmed(std::string_view text);
/// application/json with any parameters, but no charset other than UTF-8. Absent (empty) is taken
/// for it.
[[nodiscard]] bool is_json_type(std::string_view content_type);

}  // namespace kvasir::server
