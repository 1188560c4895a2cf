// Which cached content gives way next: GreedyDual over recency, hits and the cost to recompute (see
// docs/adr). It knows nodes by name and what their stripes would cost, not what is in them.
#pragma once

#include "kvcache/kv_geometry.h"
#include "kvcache/prefix_tree.h"

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace kvasir::kvcache {

/// What decides. Only tests take another than the first, to compare.
enum class ReclaimPolicy : std::uint8_t { kCostAware, kLeastRecent };

/// What is reclaimed at once: the blocks of one windowed group of a node, or all that a node has.
struct ReclaimUnit {
  static constexpr std::uint32_t kWholeNode = kMaxLayerGroups;
  NodeId node = kNoNode;
  std::uint32_t group = kWholeNode;
  friend bool operator==(const ReclaimUnit&, const ReclaimUnit&) = default;
};

/// The value of a unit is the clock at its last use, plus (1 + hits) times the cost to recompute
/// for each block that it frees. The least valuable goes first, and the clock moves on to its
/// value: so everything ages against what comes later. Calls take O(log units).
class ReclaimQueue {
 public:
  ReclaimQueue(const KvGeometry& geometry, ReclaimPolicy policy);

  /// A new node. `depth` in stripes.
  void open(NodeId node, std::uint32_t depth, std::uint32_t num_tokens);
  /// A prefix hit has taken it: it is worth more.
  void hit(NodeId node);
  /// A node that goes on what another began has its hits.
  void follow(NodeId node, NodeId parent);
  /// A hit ended within a window after it, or the tree branches there: passed() is no end for it.
  void anchor(NodeId node, std::size_t group);
  /// The last use of its blocks in one group ends now.
  void used(NodeId node, std::size_t group);
  /// The same by a window that moved on. Unless it is an anchor no hit can end soon that needs it:
  /// it goes before all others.
  void passed(NodeId node, std::size_t group);
  /// Its blocks in one group have gone.
  void forget(NodeId node, std::size_t group);

  /// Whether a unit may be reclaimed from now on. `worthless`: no hit can use it as it is.
  void offer(const ReclaimUnit& unit, bool worthless);
  void withdraw(const ReclaimUnit& unit);
  [[nodiscard]] bool is_offered(const ReclaimUnit& unit) const;
  /// The next to go; none when nothing is offered.
  [[nodiscard]] std::optional<ReclaimUnit> next() const;
  /// It goes.
  void take(const ReclaimUnit& unit);
  [[nodiscard]] std::size_t size() const { return queue_.size(); }

 private:
  struct Key {
    std::uint64_t value = 0;
    std::uint64_t last_use = 0;
    std::uint32_t node = 0;
    std::uint32_t group = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Unit {
    std::uint64_t clock = 0;  // at the last use
    std::uint64_t last_use = 0;
    bool anchored = false;
    bool passed = false;
    bool offered = false;
    Key key;  // while it is offered
  };
  struct Node {
    std::uint64_t cost = 0;
    std::uint32_t hits = 0;
  };
  [[nodiscard]] Unit& unit(NodeId node, std::size_t group);
  [[nodiscard]] const Unit& unit(NodeId node, std::size_t group) const;
  void stamp(NodeId node, std::size_t group);
  [[nodiscard]] std::uint64_t cost_of(std::uint32_t first_position, std::uint32_t num_tokens) const;
  [[nodiscard]] std::uint64_t value_of_unit(const ReclaimUnit& unit) const;

  KvGeometry geometry_;
  ReclaimPolicy policy_;
  std::uint64_t clock_ = 0;
  std::uint64_t num_uses_ = 0;
  std::vector<Node> nodes_;  // [nodes]
  std::vector<Unit> units_;  // [nodes][kMaxLayerGroups + 1]
  std::set<Key> queue_;
};

}  // namespace kvasir::kvcache
