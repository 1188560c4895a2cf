// refresh() is the one place that says what may give way: all of a leaf, or the stripe of a
// windowed group alone. Whoever changes references, children or users of a node calls it.
#include "kvcache/block_store.h"

#include "core/check.h"

#include <algorithm>
#include <optional>

namespace kvasir::kvcache {

BlockStore::BlockStore(const KvGeometry& geometry, std::uint32_t num_blocks, ReclaimPolicy policy)
    : geometry_(geometry),
      pool_(num_blocks),
      tree_(geometry),
      queue_(geometry, policy),
      owners_(num_blocks, kNoNode) {}

void BlockStore::allocate(std::size_t group, std::vector<BlockId>& stripes) {
  const std::uint32_t num_blocks = geometry_.blocks_per_stripe(group);
  KVASIR_CHECK(num_blocks <= pool_.num_free(),
               num_blocks << " blocks wanted, " << pool_.num_free() << " free");
  while (pool_.num_empty() < num_blocks) reclaim_next();
  for (std::uint32_t i = 0; i < num_blocks; ++i) stripes.push_back(pool_.allocate());
  totals_.taken += num_blocks;
}

std::uint32_t BlockStore::hold(std::size_t group, std::span<const BlockId> stripe) {
  const bool was_free = references(stripe) == 0;
  for (const BlockId block : stripe) pool_.reference(block);
  const auto num_blocks = static_cast<std::uint32_t>(stripe.size());
  if (!was_free) {
    if (geometry_.groups[group].window_tokens > 0) shared_window_blocks_ += num_blocks;
    return 0;
  }
  totals_.taken += num_blocks;
  refresh(owner(stripe.front()));
  return num_blocks;
}

std::uint32_t BlockStore::release(std::size_t group, std::span<const BlockId> stripe, Use use) {
  const NodeId node = owner(stripe.front());
  const auto content = node == kNoNode ? BlockPool::Content::kDrop : BlockPool::Content::kKeep;
  // From the end, so that the next stripe takes them in this order again.
  for (std::size_t i = stripe.size(); i > 0; --i) pool_.release(stripe[i - 1], content);
  const auto num_blocks = static_cast<std::uint32_t>(stripe.size());
  if (references(stripe) > 0) {
    if (geometry_.groups[group].window_tokens > 0) shared_window_blocks_ -= num_blocks;
    return 0;
  }
  totals_.returned += num_blocks;
  if (use == Use::kWindowPassed) totals_.window_returned += num_blocks;
  if (node != kNoNode) {
    if (use == Use::kWindowPassed) {
      queue_.passed(node, group);
    } else {
      queue_.used(node, group);
    }
    refresh(node);
  }
  return num_blocks;
}

void BlockStore::enter(NodeId node) {
  if (node == kNoNode) return;
  ++users_[value_of(node)];
  refresh(node);
}

void BlockStore::leave(NodeId node) {
  if (node == kNoNode) return;
  KVASIR_CHECK(users_[value_of(node)] > 0, "nobody goes on from node " << value_of(node));
  --users_[value_of(node)];
  refresh(node);
  erase_if_bare(node);
}

void BlockStore::anchor(NodeId node, std::size_t group) {
  if (tree_.has(node, group)) queue_.anchor(node, group);
}

NodeId BlockStore::publish(const BlockHash& hash, const StripeIdentity& identity) {
  const std::uint64_t most_nodes = std::uint64_t{pool_.num_blocks()} * kMostNodesPerBlock;
  // One unit may free no node (a windowed stripe alone): not everything is given up for one more.
  if (tree_.size() >= most_nodes && queue_.next()) reclaim_next();
  if (tree_.size() >= most_nodes) return kNoNode;
  return opened(tree_.insert_full(hash, identity));
}

NodeId BlockStore::publish_partial(const StripeIdentity& identity) {
  if (tree_.size() >= std::uint64_t{pool_.num_blocks()} * kMostNodesPerBlock) return kNoNode;
  return opened(tree_.insert_partial(identity));
}

NodeId BlockStore::opened(NodeId node) {
  if (node == kNoNode) return node;
  if (value_of(node) >= users_.size()) users_.resize(std::size_t{value_of(node)} + 1, 0);
  queue_.open(node, tree_.depth(node), static_cast<std::uint32_t>(tree_.tokens(node).size()));
  if (tree_.parent(node) != kNoNode) refresh(tree_.parent(node));
  return node;
}

void BlockStore::attach(NodeId node, std::size_t group, std::span<const BlockId> stripe) {
  for (const BlockId block : stripe) {
    KVASIR_CHECK(owner(block) == kNoNode, "block " << value_of(block) << " is another node's");
    KVASIR_CHECK(pool_.references(block) == 1, "block " << value_of(block) << " is shared");
    owners_[value_of(block)] = node;
  }
  tree_.attach(node, group, stripe);
  if (tree_.is_complete(node)) replace_covered(node);
}

/// A copy of the first tokens can be made of the longer one as well.
void BlockStore::replace_covered(NodeId node) {
  for (NodeId shorter = tree_.covered_by(node); shorter != kNoNode && is_free_leaf(shorter);
       shorter = tree_.covered_by(node)) {
    for (std::size_t group = 0; group < geometry_.groups.size(); ++group) {
      totals_.reclaimed += detach(shorter, group);
    }
    erase_if_bare(shorter);
  }
}

void BlockStore::drop(NodeId node) {
  std::vector<NodeId> dropped{node};
  for (std::size_t i = 0; i < dropped.size(); ++i) {
    for (NodeId child = tree_.first_child(dropped[i]); child != kNoNode;
         child = tree_.next_sibling(child)) {
      dropped.push_back(child);
    }
  }
  const NodeId parent = tree_.parent(node);
  enter(parent);                                      // so that it is not erased from below
  for (std::size_t i = dropped.size(); i > 0; --i) {  // children first
    const NodeId id = dropped[i - 1];
    KVASIR_CHECK(num_users(id) == (id == node ? 1 : 0), "somebody goes on from what is dropped");
    for (std::size_t group = 0; group < geometry_.groups.size(); ++group) {
      totals_.dropped += detach(id, group);
    }
    queue_.withdraw({id, ReclaimUnit::kWholeNode});
    tree_.erase(id);
  }
  users_[value_of(node)] = 0;
  leave(parent);
}

void BlockStore::reclaim_next() {
  const std::optional<ReclaimUnit> unit = queue_.next();
  KVASIR_CHECK(unit.has_value(),
               "nothing can be reclaimed and " << pool_.num_kept() << " are kept");
  queue_.take(*unit);
  for (std::size_t group = 0; group < geometry_.groups.size(); ++group) {
    if (unit->group == ReclaimUnit::kWholeNode || unit->group == group) {
      totals_.reclaimed += detach(unit->node, group);
    }
  }
  refresh(unit->node);
  erase_if_bare(unit->node);
}

/// Returns how many blocks were the node's. Those that nobody holds are empty then.
std::uint32_t BlockStore::detach(NodeId node, std::size_t group) {
  if (!tree_.has(node, group)) return 0;
  const std::span<const BlockId> stripe = tree_.stripe(node, group);
  for (const BlockId block : stripe) {
    owners_[value_of(block)] = kNoNode;
    if (pool_.is_kept(block)) pool_.drop(block);
  }
  queue_.withdraw({node, static_cast<std::uint32_t>(group)});
  queue_.withdraw({node, ReclaimUnit::kWholeNode});
  queue_.forget(node, group);
  tree_.detach(node, group);
  return static_cast<std::uint32_t>(stripe.size());
}

bool BlockStore::is_free(NodeId node, std::size_t group) const {
  return tree_.has(node, group) && references(tree_.stripe(node, group)) == 0;
}

/// Nobody holds anything of it or goes on from it, and nothing is cached below.
bool BlockStore::is_free_leaf(NodeId node) const {
  if (tree_.num_children(node) > 0 || num_users(node) > 0) return false;
  for (std::size_t group = 0; group < geometry_.groups.size(); ++group) {
    if (tree_.has(node, group) && !is_free(node, group)) return false;
  }
  return tree_.has_blocks(node);
}

void BlockStore::refresh(NodeId node) {
  if (node == kNoNode) return;
  const ReclaimUnit whole{node, ReclaimUnit::kWholeNode};
  const bool is_leaf = is_free_leaf(node);
  queue_.withdraw(whole);
  // No hit ends at a leaf that lacks a group, and none goes past it.
  if (is_leaf) queue_.offer(whole, !tree_.is_complete(node));
  for (std::size_t group = 0; group < geometry_.groups.size(); ++group) {
    if (geometry_.groups[group].window_tokens == 0) continue;
    const ReclaimUnit alone{node, static_cast<std::uint32_t>(group)};
    queue_.withdraw(alone);
    if (!is_leaf && is_free(node, group)) queue_.offer(alone, false);
  }
}

/// A node goes when it has neither blocks nor children nor users, and takes its parent with it if
/// that is now as bare.
void BlockStore::erase_if_bare(NodeId node) {
  while (node != kNoNode && !tree_.has_blocks(node) && tree_.num_children(node) == 0 &&
         num_users(node) == 0) {
    const NodeId parent = tree_.parent(node);
    tree_.erase(node);
    refresh(parent);
    node = parent;
  }
}

void BlockStore::check_integrity(std::span<const std::uint32_t> held) const {
  tree_.check_integrity();
  KVASIR_CHECK(tree_.size() <= std::uint64_t{pool_.num_blocks()} * kMostNodesPerBlock);
  std::vector<NodeId> owners(pool_.num_blocks(), kNoNode);
  std::size_t num_offered = 0;
  for (std::uint32_t i = 0; i < tree_.end_of_ids(); ++i) {
    const NodeId node{i};
    if (!tree_.contains(node)) continue;
    const bool is_leaf = is_free_leaf(node);
    KVASIR_CHECK(queue_.is_offered({node, ReclaimUnit::kWholeNode}) == is_leaf, "node " << i);
    num_offered += is_leaf ? 1 : 0;
    KVASIR_CHECK(tree_.has_blocks(node) || tree_.num_children(node) > 0 || num_users(node) > 0,
                 "node " << i << " stands for nothing");
    for (std::uint32_t group = 0; group < geometry_.groups.size(); ++group) {
      const bool windowed = geometry_.groups[group].window_tokens > 0;
      KVASIR_CHECK(windowed || tree_.has(node, group), "node " << i << " has lost group " << group);
      const bool alone = windowed && !is_leaf && is_free(node, group);
      KVASIR_CHECK(queue_.is_offered({node, group}) == alone, "node " << i << " group " << group);
      num_offered += alone ? 1 : 0;
      for (const BlockId block : tree_.stripe(node, group)) {
        KVASIR_CHECK(pool_.references(block) == references(tree_.stripe(node, group)));
        owners[value_of(block)] = node;
      }
    }
  }
  KVASIR_CHECK(num_offered == queue_.size(), num_offered << " of " << queue_.size());
  KVASIR_CHECK(owners == owners_, "blocks and nodes disagree");
  std::uint32_t num_live = 0;
  std::uint32_t num_kept = 0;
  for (std::uint32_t i = 0; i < pool_.num_blocks(); ++i) {
    const BlockId block{i};
    KVASIR_CHECK(pool_.references(block) == held[i], "block " << i << ": "
                                                              << pool_.references(block)
                                                              << " references, held " << held[i]);
    num_live += held[i] > 0 ? 1 : 0;
    KVASIR_CHECK(pool_.is_kept(block) == (held[i] == 0 && owner(block) != kNoNode), "block " << i);
    num_kept += pool_.is_kept(block) ? 1 : 0;
  }
  KVASIR_CHECK(num_kept == pool_.num_kept());
  KVASIR_CHECK(num_live + pool_.num_free() == pool_.num_blocks(),
               num_live << " live, " << pool_.num_free() << " free");
  KVASIR_CHECK(totals_.taken - totals_.returned == num_live, "taken and not returned");
}

}  // namespace kvasir::kvcache
