// The tensor section of a GGUF file: descriptions first, then where each tensor's bytes are in the
// data section.
#pragma once

#include "runtime/model/gguf_cursor.h"
#include "runtime/model/gguf_reader.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::runtime {

/// The smallest entry: length of the name, one byte of name, number of dimensions, one dimension,
/// type, offset.
inline constexpr std::uint64_t kMinTensorEntryBytes = 8 + 1 + 4 + 8 + 4 + 8;

/// Reads `num_tensors` descriptions at the cursor and gives each tensor its part of `bytes`, the
/// whole file: aligned, inside, and no two overlapping. Throws GgufRefused.
[[nodiscard]] std::vector<GgufTensor> read_gguf_tensors(GgufCursor& cursor,
                                                        std::span<const std::byte> bytes,
                                                        std::uint64_t num_tensors,
                                                        std::uint64_t alignment);

}  // namespace kvasir::runtime
