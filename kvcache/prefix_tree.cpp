// The hash finds one candidate and the comparison decides. Among nodes in the order of their tokens
// the one that shares most with a list is next to the place where the list would stand.
#include "kvcache/prefix_tree.h"

#include "core/check.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

namespace kvasir::kvcache {
namespace {

bool comes_before(const StripeIdentity& a, const StripeIdentity& b) {
  if (std::tie(a.parent, a.cache_salt) != std::tie(b.parent, b.cache_salt)) {
    return std::tie(a.parent, a.cache_salt) < std::tie(b.parent, b.cache_salt);
  }
  return std::ranges::lexicographical_compare(a.tokens, b.tokens);
}

}  // namespace

PrefixTree::PrefixTree(const KvGeometry& geometry)
    : block_tokens_(geometry.block_tokens),
      all_groups_((1U << geometry.groups.size()) - 1),
      by_tokens_(Before{this}) {
  KVASIR_CHECK(geometry.groups.size() <= kMaxLayerGroups, geometry.groups.size() << " groups");
  for (std::size_t group = 0; group < geometry.groups.size(); ++group) {
    first_block_[group + 1] = first_block_[group] + geometry.blocks_per_stripe(group);
  }
  for (std::size_t end = geometry.groups.size() + 1; end < first_block_.size(); ++end) {
    first_block_[end] = first_block_[geometry.groups.size()];
  }
}

bool PrefixTree::Before::operator()(NodeId a, NodeId b) const {
  return comes_before(tree->identity(a), tree->identity(b));
}
bool PrefixTree::Before::operator()(NodeId a, const StripeIdentity& b) const {
  return comes_before(tree->identity(a), b);
}
bool PrefixTree::Before::operator()(const StripeIdentity& a, NodeId b) const {
  return comes_before(a, tree->identity(b));
}

NodeId PrefixTree::find(const BlockHash& hash, const StripeIdentity& wanted) const {
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end()) return kNoNode;
  // Equal parents stand for equal prefixes: a parent stays, and so unchanged, while it has
  // children.
  const Node& candidate = node(found->second);
  const bool same = candidate.parent == wanted.parent &&
                    candidate.cache_salt == wanted.cache_salt &&
                    std::ranges::equal(tokens(found->second), wanted.tokens);
  return same ? found->second : kNoNode;
}

PrefixTree::Shared PrefixTree::longest_shared(const StripeIdentity& wanted) const {
  Shared best;
  const auto consider = [&](NodeId id) {
    const std::uint32_t shared = shared_tokens(id, wanted);
    if (shared > best.tokens) best = {id, shared};
  };
  const auto after = by_tokens_.lower_bound(wanted);
  if (after != by_tokens_.end()) consider(*after);
  if (after != by_tokens_.begin()) consider(*std::prev(after));
  return best;
}

NodeId PrefixTree::covered_by(NodeId id) const {
  const auto own = by_tokens_.find(id);
  KVASIR_CHECK(own != by_tokens_.end(), "node " << value_of(id) << " is not complete");
  if (own == by_tokens_.begin()) return kNoNode;
  const NodeId before = *std::prev(own);
  return shared_tokens(before, identity(id)) == node(before).num_tokens ? before : kNoNode;
}

NodeId PrefixTree::insert_full(const BlockHash& hash, const StripeIdentity& identity) {
  KVASIR_CHECK(identity.tokens.size() == block_tokens_, identity.tokens.size() << " tokens");
  const auto [position, inserted] = by_hash_.try_emplace(hash, kNoNode);
  if (!inserted) return kNoNode;
  const NodeId id = add(identity);
  position->second = id;
  node(id).hash = hash;
  return id;
}

NodeId PrefixTree::insert_partial(const StripeIdentity& identity) {
  KVASIR_CHECK(!identity.tokens.empty() && identity.tokens.size() < block_tokens_,
               identity.tokens.size() << " tokens");
  return add(identity);
}

NodeId PrefixTree::add(const StripeIdentity& identity) {
  NodeId id{end_of_ids()};
  if (unused_.empty()) {
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + block_tokens_);
    blocks_.resize(blocks_.size() + first_block_.back(), kNoBlock);
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  Node& added = nodes_[value_of(id)];
  added = Node{};
  added.parent = identity.parent;
  added.cache_salt = identity.cache_salt;
  added.num_tokens = static_cast<std::uint32_t>(identity.tokens.size());
  added.depth = identity.parent == kNoNode ? 0 : node(identity.parent).depth + 1;
  std::ranges::copy(identity.tokens,
                    tokens_.begin() + std::ptrdiff_t{value_of(id)} * block_tokens_);
  ++num_nodes_;
  link(id);
  return id;
}

void PrefixTree::erase(NodeId id) {
  const Node& erased = node(id);
  KVASIR_CHECK(erased.groups == 0, "node " << value_of(id) << " still has blocks");
  KVASIR_CHECK(erased.num_children == 0, "a parent goes before its children");
  unlink(id);
  if (is_full(id)) by_hash_.erase(erased.hash);
  node(id).num_tokens = 0;
  unused_.push_back(id);
  --num_nodes_;
}

void PrefixTree::attach(NodeId id, std::size_t group, std::span<const BlockId> stripe) {
  KVASIR_CHECK(!has(id, group), "node " << value_of(id) << " has blocks of group " << group);
  KVASIR_CHECK(stripe.size() == first_block_[group + 1] - first_block_[group], stripe.size());
  const std::size_t first = std::size_t{value_of(id)} * first_block_.back() + first_block_[group];
  std::ranges::copy(stripe, blocks_.begin() + static_cast<std::ptrdiff_t>(first));
  set_groups(id, node(id).groups | 1U << group);
}

void PrefixTree::detach(NodeId id, std::size_t group) {
  KVASIR_CHECK(has(id, group), "node " << value_of(id) << " has no blocks of group " << group);
  set_groups(id, node(id).groups & ~(1U << group));
}

bool PrefixTree::contains(NodeId id) const {
  return value_of(id) < nodes_.size() && nodes_[value_of(id)].num_tokens > 0;
}

std::span<const TokenId> PrefixTree::tokens(NodeId id) const {
  return std::span(tokens_).subspan(std::size_t{value_of(id)} * block_tokens_, node(id).num_tokens);
}

std::span<const BlockId> PrefixTree::stripe(NodeId id, std::size_t group) const {
  if (!has(id, group)) return {};
  const std::size_t first = std::size_t{value_of(id)} * first_block_.back() + first_block_[group];
  return std::span(blocks_).subspan(first, first_block_[group + 1] - first_block_[group]);
}

const PrefixTree::Node& PrefixTree::node(NodeId id) const {
  KVASIR_CHECK(contains(id), "no node " << value_of(id));
  return nodes_[value_of(id)];
}

PrefixTree::Node& PrefixTree::node(NodeId id) {
  return const_cast<Node&>(std::as_const(*this).node(id));
}

StripeIdentity PrefixTree::identity(NodeId id) const {
  return {node(id).parent, node(id).cache_salt, tokens(id)};
}

/// Into the list of its parent's children.
void PrefixTree::link(NodeId id) {
  Node& linked = node(id);
  if (linked.parent == kNoNode) return;
  Node& parent = node(linked.parent);
  KVASIR_CHECK(is_full(linked.parent), "the parent of a node is not full");
  ++parent.num_children;
  linked.next_sibling = parent.first_child;
  if (parent.first_child != kNoNode) node(parent.first_child).previous_sibling = id;
  parent.first_child = id;
}

void PrefixTree::unlink(NodeId id) {
  const Node& unlinked = node(id);
  if (unlinked.parent == kNoNode) return;
  Node& parent = node(unlinked.parent);
  --parent.num_children;
  if (parent.first_child == id) parent.first_child = unlinked.next_sibling;
  if (unlinked.previous_sibling != kNoNode) {
    node(unlinked.previous_sibling).next_sibling = unlinked.next_sibling;
  }
  if (unlinked.next_sibling != kNoNode) {
    node(unlinked.next_sibling).previous_sibling = unlinked.previous_sibling;
  }
}

/// Complete nodes are in the order by tokens, others are not: a copy needs every group.
void PrefixTree::set_groups(NodeId id, std::uint32_t groups) {
  Node& changed = node(id);
  const bool was_complete = changed.groups == all_groups_;
  const bool is_complete_now = groups == all_groups_;
  changed.groups = groups;
  if (was_complete == is_complete_now) return;
  if (is_complete_now) {
    KVASIR_CHECK(by_tokens_.insert(id).second, "two nodes of the same tokens");
  } else {
    by_tokens_.erase(id);
  }
  if (changed.parent == kNoNode) return;
  std::uint32_t& siblings = node(changed.parent).num_complete_children;
  siblings = is_complete_now ? siblings + 1 : siblings - 1;
}

std::uint32_t PrefixTree::shared_tokens(NodeId id, const StripeIdentity& wanted) const {
  const Node& candidate = node(id);
  if (candidate.parent != wanted.parent || candidate.cache_salt != wanted.cache_salt) return 0;
  const std::span<const TokenId> own = tokens(id);
  const auto end = std::ranges::mismatch(own, wanted.tokens).in1;
  return static_cast<std::uint32_t>(end - own.begin());
}

void PrefixTree::check_integrity() const {
  std::vector<std::uint32_t> children(nodes_.size(), 0);
  std::vector<std::uint32_t> complete(nodes_.size(), 0);
  std::uint32_t num_nodes = 0;
  std::uint32_t num_full = 0;
  std::uint32_t num_complete = 0;
  for (std::uint32_t i = 0; i < end_of_ids(); ++i) {
    const NodeId id{i};
    if (!contains(id)) continue;
    ++num_nodes;
    if (is_full(id)) {
      ++num_full;
      const auto found = by_hash_.find(node(id).hash);
      KVASIR_CHECK(found != by_hash_.end() && found->second == id, "node " << i << " is lost");
    }
    if (is_complete(id)) ++num_complete;
    KVASIR_CHECK(by_tokens_.contains(id) == is_complete(id), "node " << i << " is out of order");
    if (parent(id) == kNoNode) continue;
    KVASIR_CHECK(contains(parent(id)), "node " << i << " has lost its parent");
    KVASIR_CHECK(depth(id) == depth(parent(id)) + 1, "node " << i << " at depth " << depth(id));
    ++children[value_of(parent(id))];
    if (is_complete(id)) ++complete[value_of(parent(id))];
  }
  KVASIR_CHECK(num_nodes == num_nodes_ && num_full == by_hash_.size() &&
               num_complete == by_tokens_.size());
  KVASIR_CHECK(num_nodes_ + unused_.size() == nodes_.size());
  for (std::uint32_t i = 0; i < end_of_ids(); ++i) {
    const NodeId id{i};
    if (!contains(id)) continue;
    std::uint32_t listed = 0;
    for (NodeId child = first_child(id); child != kNoNode; child = next_sibling(child)) {
      KVASIR_CHECK(parent(child) == id, "node " << i << " has another's child");
      KVASIR_CHECK(++listed <= num_children(id), "children of node " << i << " in a circle");
    }
    KVASIR_CHECK(listed == num_children(id) && listed == children[i], "children of node " << i);
    KVASIR_CHECK(num_complete_children(id) == complete[i], "complete children of node " << i);
  }
}

}  // namespace kvasir::kvcache
