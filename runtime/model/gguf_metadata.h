// The metadata section of a GGUF file. What keys mean is not known here, general.alignment
// excepted.
#pragma once

#include "runtime/model/gguf_cursor.h"
#include "runtime/model/gguf_reader.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvasir::runtime {

/// From a name to its place in a vector.
using GgufIndex = std::unordered_map<std::string_view, std::size_t>;

struct GgufMetadata {
  std::vector<std::pair<std::string, GgufValue>> entries;  // in file order
  GgufIndex index;               // its keys are views into the mapped file
  std::uint64_t alignment = 32;  // of the data section
};

/// The smallest entry: length of the key, one byte of key, type, one byte of value.
inline constexpr std::uint64_t kMinKeyEntryBytes = 8 + 1 + 4 + 1;

/// Throws GgufRefused.
[[nodiscard]] GgufMetadata read_gguf_metadata(GgufCursor& cursor, std::uint64_t num_keys);

}  // namespace kvasir::runtime
