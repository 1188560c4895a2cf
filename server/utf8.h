// The few questions about UTF-8 that the doors ask. Streaming decode is text/incremental_decoder's.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvasir::server {

/// Length of the well-formed character that `bytes` starts with (1..4), or 0 if it starts with
/// none.
[[nodiscard]] std::size_t utf8_character_bytes(std::string_view bytes);
/// Well-formed as a whole (Unicode 15, table 3-7).
[[nodiscard]] bool is_utf8(std::string_view text);
/// The largest offset <= max_bytes at which a character of `text` starts or the text ends. `text`
/// must be UTF-8.
[[nodiscard]] std::size_t utf8_floor(std::string_view text, std::size_t max_bytes);
/// The text with each ill-formed byte sequence replaced by U+FFFD, one for each maximal ill-formed
/// part.
[[nodiscard]] std::string to_utf8(std::string_view bytes);

}  // namespace kvasir::server
