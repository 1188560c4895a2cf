// Identifiers of the whole project. They are distinct types, so that a block is never passed for a
// sequence. What they identify lives elsewhere: sequences in scheduler/, blocks in kvcache/, tokens
// in text/.
#pragma once

#include <cstdint>
#include <functional>

namespace kvasir {

/// One stream of tokens made for a request. Unique for the life of the process, rising in order of
/// submission.
enum class SequenceId : std::uint64_t {};

/// Index of a KV block in the arena, in [0, num_blocks).
enum class BlockId : std::uint32_t {};

/// No block: in tables, in place of one that is not needed any more.
inline constexpr BlockId kNoBlock{0xffff'ffffU};

/// Index into the model's vocabulary, in [0, logits width).
using TokenId = std::uint32_t;

constexpr std::uint64_t value_of(SequenceId id) { return static_cast<std::uint64_t>(id); }
constexpr std::uint32_t value_of(BlockId id) { return static_cast<std::uint32_t>(id); }

}  // namespace kvasir
