// What the bytes at the start of a text are, by the one table of well-formed UTF-8 (Unicode 15,
// table 3-7) that text and the doors share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvasir::text {

struct Utf8Prefix {
  enum class Kind : std::uint8_t { kCharacter, kUnfinished, kIllFormed };
  Kind kind = Kind::kCharacter;
  std::size_t size_bytes = 0;  // of the character, of all that is there of an unfinished one, or of
                               // the maximal ill-formed part: at least 1
};

/// Requires: `bytes` is not empty.
[[nodiscard]] Utf8Prefix utf8_prefix(std::string_view bytes);

}  // namespace kvasir::text
