// What two sequences begin with alike, as far as one may take it from the other. Counts of tokens
// only: where keys and values are is the KV manager's.
#pragma once

#include "scheduler/sequence.h"

#include <cstdint>

namespace kvasir::scheduler {

/// Choices of one prompt.
[[nodiscard]] bool are_siblings(const Sequence& a, const Sequence& b);

/// Choices of one prompt share it in any case. Others share what they begin with alike where the
/// prefix cache is on and their salts are equal.
[[nodiscard]] bool may_share(const Sequence& a, const Sequence& b);

/// Tokens that `sequence` has in common with the beginning of `other` and need not compute: its
/// last one must be. Full blocks are compared by their hashes, which are chained: when they
/// collide, too many are said to be alike. Requires: may_share.
[[nodiscard]] std::uint32_t common_prefix(const Sequence& sequence, const Sequence& other,
                                          std::uint32_t block_tokens);

/// How many of the first `num_tokens` really are the same. Requires: both have as many.
[[nodiscard]] std::uint32_t equal_tokens(const Sequence& a, const Sequence& b,
                                         std::uint32_t num_tokens);

}  // namespace kvasir::scheduler
