// How a value that a client sent is shown in an error message: at most 64 bytes of it, whole
// characters, and no control characters. The messages themselves are the validator's and the JSON
// layer's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir::server {

/// In double quotes, cut to 64 bytes on a character boundary with "..." behind; control characters
/// and those that turn the direction of text become '?'. `text` must be UTF-8.
[[nodiscard]] std::string shown_value(std::string_view text);
/// The shortest decimal that gives the same double back; "NaN", "Infinity", "-Infinity".
[[nodiscard]] std::string shown_value(double number);
[[nodiscard]] std::string shown_value(std::int64_t number);

}  // namespace kvasir::server
