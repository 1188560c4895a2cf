// Equal hashes at a block stand for equal prefixes up to it, so that a few looks find where two
// long lists part.
#include "scheduler/common_prefix.h"

#include <algorithm>
#include <span>

namespace kvasir::scheduler {
namespace {

/// Full blocks with equal hashes.
std::uint32_t common_blocks(const Sequence& a, const Sequence& b) {
  const std::span<const kvcache::BlockHash> ours = a.hashes.blocks();
  const std::span<const kvcache::BlockHash> theirs = b.hashes.blocks();
  std::size_t alike = 0;
  std::size_t beyond = std::min(ours.size(), theirs.size()) + 1;
  while (alike + 1 < beyond) {
    const std::size_t middle = alike + (beyond - alike) / 2;
    (ours[middle - 1] == theirs[middle - 1] ? alike : beyond) = middle;
  }
  return static_cast<std::uint32_t>(alike);
}

}  // namespace

bool are_siblings(const Sequence& a, const Sequence& b) {
  return a.fork_group != 0 && a.fork_group == b.fork_group;
}

bool may_share(const Sequence& a, const Sequence& b) {
  if (are_siblings(a, b)) return true;
  return a.hashes.is_enabled() && b.hashes.is_enabled() && a.hashes.cache_salt() == b.hashes.cache_salt();
}

std::uint32_t common_prefix(const Sequence& sequence, const Sequence& other,
                            std::uint32_t block_tokens) {
  const std::uint32_t most = std::min(sequence.num_tokens() - 1, other.num_tokens());
  std::uint32_t tokens = std::min(most, common_blocks(sequence, other) * block_tokens);
  while (tokens < most && sequence.tokens[tokens] == other.tokens[tokens]) ++tokens;
  return tokens;
}

std::uint32_t equal_tokens(const Sequence& a, const Sequence& b, std::uint32_t num_tokens) {
  const auto end = a.tokens.begin() + num_tokens;
  const auto parting = std::mismatch(a.tokens.begin(), end, b.tokens.begin());
  return static_cast<std::uint32_t>(parting.first - a.tokens.begin());
}

}  // namespace kvasir::scheduler
