// What is cached, as a tree: a node stands for the tokens of one stripe after the stripes of its
// ancestors, and holds for each layer group the stripe's blocks, or none. Full nodes are found by
// hash and decided by comparison, so that a collision is a miss; the first tokens of any node are
// found by order. It counts no references and chooses nothing: that is block_store's.
#pragma once

#include "core/ids.h"
#include "kvcache/block_hash.h"
#include "kvcache/kv_geometry.h"

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvasir::kvcache {

/// A node of the tree; its number is used again when it is gone.
enum class NodeId : std::uint32_t {};
inline constexpr NodeId kNoNode{0xffff'ffffU};
constexpr std::uint32_t value_of(NodeId id) { return static_cast<std::uint32_t>(id); }

/// Everything that decides what the keys and values of a stripe are.
struct StripeIdentity {
  NodeId parent = kNoNode;  // of the stripe before it; none for the first
  std::uint64_t cache_salt = 0;
  std::span<const TokenId> tokens;  // at most block_tokens
};

class PrefixTree {
 public:
  explicit PrefixTree(const KvGeometry& geometry);
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  /// The full node of this very content, whatever blocks it has, or kNoNode.
  [[nodiscard]] NodeId find(const BlockHash& hash, const StripeIdentity& wanted) const;
  /// The complete node after the same stripes whose first tokens are the most of `wanted.tokens`,
  /// and how many they are; {kNoNode, 0} for none. O(log nodes).
  struct Shared {
    NodeId node = kNoNode;
    std::uint32_t tokens = 0;
  };
  [[nodiscard]] Shared longest_shared(const StripeIdentity& wanted) const;

  /// The complete node of fewer tokens whose tokens a complete node begins with, if it comes just
  /// before it in order; kNoNode for none.
  [[nodiscard]] NodeId covered_by(NodeId id) const;

  /// Adds a full node without blocks; kNoNode when another content with the same hash is there: the
  /// first one stays.
  [[nodiscard]] NodeId insert_full(const BlockHash& hash, const StripeIdentity& identity);
  /// Adds a node of fewer tokens, which can have no children. Requires: no node of these very
  /// tokens is there.
  [[nodiscard]] NodeId insert_partial(const StripeIdentity& identity);
  /// Requires: neither blocks nor children.
  void erase(NodeId id);
  /// Gives a node the blocks of one group. Requires: it has none there.
  void attach(NodeId id, std::size_t group, std::span<const BlockId> stripe);
  void detach(NodeId id, std::size_t group);

  [[nodiscard]] bool contains(NodeId id) const;
  [[nodiscard]] NodeId parent(NodeId id) const { return node(id).parent; }
  [[nodiscard]] std::uint64_t cache_salt(NodeId id) const { return node(id).cache_salt; }
  [[nodiscard]] std::uint32_t num_children(NodeId id) const { return node(id).num_children; }
  /// Of those, the ones that longest_shared() can find.
  [[nodiscard]] std::uint32_t num_complete_children(NodeId id) const {
    return node(id).num_complete_children;
  }
  [[nodiscard]] NodeId first_child(NodeId id) const { return node(id).first_child; }
  [[nodiscard]] NodeId next_sibling(NodeId id) const { return node(id).next_sibling; }
  [[nodiscard]] std::uint32_t depth(NodeId id) const { return node(id).depth; }  // in stripes
  [[nodiscard]] std::span<const TokenId> tokens(NodeId id) const;
  [[nodiscard]] bool is_full(NodeId id) const { return node(id).num_tokens == block_tokens_; }
  [[nodiscard]] bool has(NodeId id, std::size_t group) const {
    return (node(id).groups & (1U << group)) != 0;
  }
  [[nodiscard]] bool has_blocks(NodeId id) const { return node(id).groups != 0; }
  /// Has the blocks of every group.
  [[nodiscard]] bool is_complete(NodeId id) const { return node(id).groups == all_groups_; }
  /// The blocks of one group; empty where it has none. Valid until the next insertion.
  [[nodiscard]] std::span<const BlockId> stripe(NodeId id, std::size_t group) const;
  [[nodiscard]] std::uint32_t size() const { return num_nodes_; }
  /// All ids are below this.
  [[nodiscard]] std::uint32_t end_of_ids() const {
    return static_cast<std::uint32_t>(nodes_.size());
  }
  /// Counts, links and orders are what they must be. O(nodes log nodes).
  void check_integrity() const;

 private:
  struct Node {
    NodeId parent = kNoNode;
    NodeId first_child = kNoNode;
    NodeId next_sibling = kNoNode;
    NodeId previous_sibling = kNoNode;
    std::uint32_t num_children = 0;
    std::uint32_t num_complete_children = 0;
    std::uint32_t depth = 0;
    std::uint32_t num_tokens = 0;  // 0: not in use
    std::uint32_t groups = 0;      // bit g: has the blocks of group g
    std::uint64_t cache_salt = 0;
    BlockHash hash;  // of full ones
  };
  struct HashOfHash {
    std::size_t operator()(const BlockHash& hash) const {
      return static_cast<std::size_t>(hash.low);
    }
  };
  /// By parent, salt and tokens.
  struct Before {
    using is_transparent = void;
    const PrefixTree* tree;
    bool operator()(NodeId a, NodeId b) const;
    bool operator()(NodeId a, const StripeIdentity& b) const;
    bool operator()(const StripeIdentity& a, NodeId b) const;
  };
  [[nodiscard]] const Node& node(NodeId id) const;
  [[nodiscard]] Node& node(NodeId id);
  [[nodiscard]] StripeIdentity identity(NodeId id) const;
  [[nodiscard]] NodeId add(const StripeIdentity& identity);
  void link(NodeId id);
  void unlink(NodeId id);
  void set_groups(NodeId id, std::uint32_t groups);
  [[nodiscard]] std::uint32_t shared_tokens(NodeId id, const StripeIdentity& wanted) const;

  std::uint32_t block_tokens_;
  std::uint32_t all_groups_;  // a bit for each group
  std::array<std::uint32_t, kMaxLayerGroups + 1>
      first_block_{};  // of each group in a node's blocks
  std::uint32_t num_nodes_ = 0;
  std::vector<Node> nodes_;
  std::vector<NodeId> unused_;
  std::vector<TokenId> tokens_;                                // [nodes][block_tokens]
  std::vector<BlockId> blocks_;                                // [nodes][blocks of all groups]
  std::unordered_map<BlockHash, NodeId, HashOfHash> by_hash_;  // full nodes
  std::set<NodeId, Before> by_tokens_;                         // complete nodes
};

}  // namespace kvasir::kvcache
