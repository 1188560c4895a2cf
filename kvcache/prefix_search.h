// Questions to the prefix tree about a token list: the chain of full stripes that are cached, the
// node to copy the tokens past them from, and the longest start that windows allow.
#pragma once

#include "kvcache/block_hash.h"
#include "kvcache/block_store.h"
#include "kvcache/prefix_tree.h"

#include <cstdint>
#include <vector>

namespace kvasir::kvcache {

/// The nodes of the first full stripes of a list, as far as they are cached and at most
/// `most_stripes`; whatever blocks they have.
[[nodiscard]] std::vector<NodeId> cached_chain(const PrefixTree& tree, const HashedTokens& tokens,
                                               std::uint32_t most_stripes);

/// The complete node that holds the most of the tokens from stripe `stripe` on, up to `end` tokens
/// of the list. `parent` is the node of the stripe before.
[[nodiscard]] PrefixTree::Shared copy_source(const PrefixTree& tree, const HashedTokens& tokens,
                                             NodeId parent, std::uint32_t stripe,
                                             std::uint32_t end);

/// Where a sequence with these tokens may start.
struct CachedStart {
  std::vector<NodeId> nodes;  // of the full stripes
  PrefixTree::Shared copied;  // of the tokens past them
};
/// The longest one that leaves at least one token to compute and has all that the next query sees.
[[nodiscard]] CachedStart longest_start(const BlockStore& store, const HashedTokens& tokens,
                                        bool with_copy);

}  // namespace kvasir::kvcache
