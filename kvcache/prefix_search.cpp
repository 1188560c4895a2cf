// The chain is walked once forwards, noting since which stripe each windowed group is unbroken, and
// then backwards to the first place where nothing is missing.
#include "kvcache/prefix_search.h"

#include "kvcache/kv_geometry.h"

#include <algorithm>
#include <array>
#include <optional>

namespace kvasir::kvcache {
namespace {

/// Of each group, the first stripe from which on it has blocks without a gap.
using Unbroken = std::array<std::uint32_t, kMaxLayerGroups>;

/// [stripes + 1]: before the first stripe, and after each.
std::vector<Unbroken> unbroken_since(const BlockStore& store, const std::vector<NodeId>& chain) {
  std::vector<Unbroken> since(chain.size() + 1, Unbroken{});
  for (std::uint32_t stripe = 0; stripe < chain.size(); ++stripe) {
    since[stripe + 1] = since[stripe];
    for (std::size_t group = 0; group < store.geometry().groups.size(); ++group) {
      if (!store.tree().has(chain[stripe], group)) since[stripe + 1][group] = stripe + 1;
    }
  }
  return since;
}

bool sees_all(const KvGeometry& geometry, const Unbroken& since, std::uint32_t position) {
  for (std::size_t group = 0; group < geometry.groups.size(); ++group) {
    if (geometry.first_visible_stripe(group, position) < since[group]) return false;
  }
  return true;
}

}  // namespace

std::vector<NodeId> cached_chain(const PrefixTree& tree, const HashedTokens& tokens,
                                 std::uint32_t most_stripes) {
  std::vector<NodeId> chain;
  const std::uint32_t block_tokens = tokens.hashes.block_tokens();
  const auto end = static_cast<std::uint32_t>(
      std::min<std::size_t>(tokens.hashes.blocks().size(), most_stripes));
  for (std::uint32_t stripe = 0; stripe < end; ++stripe) {
    const StripeIdentity wanted{
        chain.empty() ? kNoNode : chain.back(), tokens.hashes.cache_salt(),
        tokens.tokens.subspan(std::size_t{stripe} * block_tokens, block_tokens)};
    const NodeId node = tree.find(tokens.hashes.blocks()[stripe], wanted);
    if (node == kNoNode) break;
    chain.push_back(node);
  }
  return chain;
}

PrefixTree::Shared copy_source(const PrefixTree& tree, const HashedTokens& tokens, NodeId parent,
                               std::uint32_t stripe, std::uint32_t end) {
  const std::uint32_t block_tokens = tokens.hashes.block_tokens();
  const std::uint32_t first = stripe * block_tokens;
  if (parent != kNoNode && tree.num_complete_children(parent) == 0) return {};
  if (end <= first) return {};
  const std::uint32_t most = std::min(end - first, block_tokens - 1);
  return tree.longest_shared(
      {parent, tokens.hashes.cache_salt(), tokens.tokens.subspan(first, most)});
}

CachedStart longest_start(const BlockStore& store, const HashedTokens& tokens, bool with_copy) {
  if (!tokens.hashes.is_enabled() || tokens.tokens.empty()) return {};
  const KvGeometry& geometry = store.geometry();
  const auto end = static_cast<std::uint32_t>(tokens.tokens.size()) - 1;  // that one is computed
  CachedStart start{cached_chain(store.tree(), tokens, end / geometry.block_tokens), {}};
  std::vector<Unbroken> since;
  if (geometry.has_windows()) since = unbroken_since(store, start.nodes);
  const auto allowed = [&](std::uint32_t position) {
    return since.empty() || sees_all(geometry, since[start.nodes.size()], position);
  };
  for (;; start.nodes.pop_back()) {
    const auto stripe = static_cast<std::uint32_t>(start.nodes.size());
    const std::uint32_t position = stripe * geometry.block_tokens;
    const NodeId parent = stripe == 0 ? kNoNode : start.nodes.back();
    if (with_copy) start.copied = copy_source(store.tree(), tokens, parent, stripe, end);
    if (start.copied.tokens > 0 && allowed(position + start.copied.tokens)) return start;
    start.copied = {};
    if (allowed(position)) return start;  // at 0 at the latest: nothing is seen from there
  }
}

}  // namespace kvasir::kvcache
