// The blocks and what is in them: the pool's references, the tree of what is cached, and the queue
// of what gives way, kept in step. A stripe of one group is held, released and reclaimed as one. It
// knows no sequences: those are kv_cache_manager's.
#pragma once

#include "core/ids.h"
#include "kvcache/block_pool.h"
#include "kvcache/kv_geometry.h"
#include "kvcache/prefix_tree.h"
#include "kvcache/reclaim_queue.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::kvcache {

/// Counted since the start, in blocks.
struct KvTotals {
  std::uint64_t taken = 0;     // see KvReceipt
  std::uint64_t returned = 0;  // of them by windows that moved on: window_returned
  std::uint64_t window_returned = 0;
  std::uint64_t reclaimed = 0;  // cached content that gave way to other content
  std::uint64_t dropped = 0;    // cached content thrown away because an audit found it stale
};

/// Nodes of the tree for each block of the pool. A node without a window always has blocks; where
/// all groups have one, nodes behind the windows stay for as long as something is cached below
/// them.
inline constexpr std::uint32_t kMostNodesPerBlock = 16;

class BlockStore {
 public:
  BlockStore(const KvGeometry& geometry, std::uint32_t num_blocks, ReclaimPolicy policy);

  [[nodiscard]] const KvGeometry& geometry() const { return geometry_; }
  [[nodiscard]] const BlockPool& pool() const { return pool_; }
  [[nodiscard]] const PrefixTree& tree() const { return tree_; }
  [[nodiscard]] const KvTotals& totals() const { return totals_; }
  [[nodiscard]] std::uint32_t references(std::span<const BlockId> stripe) const {
    return pool_.references(stripe.front());
  }
  /// The node whose content a block is, or kNoNode.
  [[nodiscard]] NodeId owner(BlockId block) const { return owners_[value_of(block)]; }
  /// See KvView.
  [[nodiscard]] std::uint32_t shared_window_blocks() const { return shared_window_blocks_; }

  /// Appends the blocks of one new stripe, each with one reference; cached content gives way when
  /// nothing else is free. Requires room.
  void allocate(std::size_t group, std::vector<BlockId>& stripes);
  /// Adds a reference to the blocks of a stripe. Returns how many of them were free.
  std::uint32_t hold(std::size_t group, std::span<const BlockId> stripe);
  enum class Use { kEnds, kWindowPassed };
  /// Drops a reference. Returns how many blocks are free by it. Published ones stay cached.
  std::uint32_t release(std::size_t group, std::span<const BlockId> stripe, Use use);

  /// A node that somebody goes on from stays, with or without blocks.
  void enter(NodeId node);
  void leave(NodeId node);
  void hit(NodeId node) { queue_.hit(node); }
  /// The only child goes on what its parent began: it is worth as much.
  void follow(NodeId node) { queue_.follow(node, tree_.parent(node)); }
  /// A hit ended within the window after this stripe, or the tree branches there.
  void anchor(NodeId node, std::size_t group);

  /// A new full node without blocks; kNoNode when it cannot be (another content has its hash, or
  /// there are too many nodes).
  [[nodiscard]] NodeId publish(const BlockHash& hash, const StripeIdentity& identity);
  /// The same for one with fewer tokens. Requires: none of these very tokens is there.
  [[nodiscard]] NodeId publish_partial(const StripeIdentity& identity);
  /// Makes a held stripe the node's. Shorter nodes that it covers give way as soon as it is
  /// complete.
  void attach(NodeId node, std::size_t group, std::span<const BlockId> stripe);
  /// Forgets a node and all below it, because what it holds is not what it should be. Requires: the
  /// caller has entered it, and nobody else goes on from any of them; it is left by this.
  void drop(NodeId node);

  /// All books agree, given how many references each block should have. O(blocks + nodes).
  void check_integrity(std::span<const std::uint32_t> held) const;
  /// How many go on from this node; for integrity checks.
  [[nodiscard]] std::uint32_t num_users(NodeId node) const { return users_[value_of(node)]; }

 private:
  [[nodiscard]] bool is_free(NodeId node, std::size_t group) const;
  [[nodiscard]] bool is_free_leaf(NodeId node) const;
  [[nodiscard]] NodeId opened(NodeId node);
  void reclaim_next();
  std::uint32_t detach(NodeId node, std::size_t group);
  void refresh(NodeId node);
  void erase_if_bare(NodeId node);
  void replace_covered(NodeId node);

  KvGeometry geometry_;
  BlockPool pool_;
  PrefixTree tree_;
  ReclaimQueue queue_;
  std::vector<NodeId> owners_;        // [num_blocks]
  std::vector<std::uint32_t> users_;  // [nodes]
  std::uint32_t shared_window_blocks_ = 0;
  KvTotals totals_;
};

}  // namespace kvasir::kvcache
