// Values are integers, so that the order is the same everywhere; equal ones go by last use.
#include "kvcache/reclaim_queue.h"

#include "core/check.h"

#include <algorithm>
#include <utility>

namespace kvasir::kvcache {
namespace {

constexpr std::uint64_t kCostOfToken = 256;  // fixed point: costs are compared after divisions
/// Positions whose attention costs as much as the products of a token. In a Llama with 135 M
/// weights: 2 * 135 M operations against 4 * 30 layers * 9 heads * 64 = 69 k for a position, 3 900.
/// Larger models have more; it only has to be right within a factor.
constexpr std::uint64_t kPositionsPerToken = 4096;
/// A prefix that was hit often is not kept for ever: the weight of a hit ends here.
constexpr std::uint32_t kMostHits = 3;

}  // namespace

ReclaimQueue::ReclaimQueue(const KvGeometry& geometry, ReclaimPolicy policy)
    : geometry_(geometry), policy_(policy) {}

void ReclaimQueue::open(NodeId node, std::uint32_t depth, std::uint32_t num_tokens) {
  if (value_of(node) >= nodes_.size()) {
    nodes_.resize(std::size_t{value_of(node)} + 1);
    units_.resize(nodes_.size() * (kMaxLayerGroups + 1));
  }
  // Where windows are, a partly filled stripe is where hits end: it is worth a whole one.
  const std::uint32_t counted = geometry_.has_windows() ? geometry_.block_tokens : num_tokens;
  nodes_[value_of(node)] = {cost_of(depth * geometry_.block_tokens, counted), 0};
  for (std::size_t group = 0; group <= kMaxLayerGroups; ++group) {
    KVASIR_CHECK(!unit(node, group).offered, "a node is opened twice");
    unit(node, group) = Unit{};
  }
}

void ReclaimQueue::hit(NodeId node) {
  std::uint32_t& hits = nodes_[value_of(node)].hits;
  hits = std::min(hits + 1, kMostHits);
}

void ReclaimQueue::follow(NodeId node, NodeId parent) {
  nodes_[value_of(node)].hits = nodes_[value_of(parent)].hits;
}

void ReclaimQueue::anchor(NodeId node, std::size_t group) { unit(node, group).anchored = true; }

void ReclaimQueue::used(NodeId node, std::size_t group) {
  unit(node, group).anchored = true;
  stamp(node, group);
}

void ReclaimQueue::passed(NodeId node, std::size_t group) { stamp(node, group); }

void ReclaimQueue::stamp(NodeId node, std::size_t group) {
  Unit& stamped = unit(node, group);
  stamped.passed = !stamped.anchored;
  stamped.clock = clock_;
  stamped.last_use = ++num_uses_;
}

void ReclaimQueue::forget(NodeId node, std::size_t group) {
  KVASIR_CHECK(!unit(node, group).offered, "what is offered is forgotten");
  unit(node, group) = Unit{};
}

void ReclaimQueue::offer(const ReclaimUnit& offered, bool worthless) {
  withdraw(offered);
  Unit& entered = unit(offered.node, offered.group);
  std::uint64_t last_use = 0;
  for (std::size_t group = 0; group < geometry_.groups.size(); ++group) {
    if (offered.group != ReclaimUnit::kWholeNode && offered.group != group) continue;
    last_use = std::max(last_use, unit(offered.node, group).last_use);
  }
  const std::uint64_t value = worthless ? 0 : value_of_unit(offered);
  entered.key = {value, last_use, value_of(offered.node), offered.group};
  entered.offered = true;
  queue_.insert(entered.key);
}

void ReclaimQueue::withdraw(const ReclaimUnit& withdrawn) {
  Unit& left = unit(withdrawn.node, withdrawn.group);
  if (!left.offered) return;
  queue_.erase(left.key);
  left.offered = false;
}

bool ReclaimQueue::is_offered(const ReclaimUnit& asked) const {
  return unit(asked.node, asked.group).offered;
}

std::optional<ReclaimUnit> ReclaimQueue::next() const {
  if (queue_.empty()) return std::nullopt;
  return ReclaimUnit{NodeId{queue_.begin()->node}, queue_.begin()->group};
}

void ReclaimQueue::take(const ReclaimUnit& taken) {
  clock_ = std::max(clock_, unit(taken.node, taken.group).key.value);
  withdraw(taken);
}

ReclaimQueue::Unit& ReclaimQueue::unit(NodeId node, std::size_t group) {
  return const_cast<Unit&>(std::as_const(*this).unit(node, group));
}

const ReclaimQueue::Unit& ReclaimQueue::unit(NodeId node, std::size_t group) const {
  const std::size_t index = std::size_t{value_of(node)} * (kMaxLayerGroups + 1) + group;
  KVASIR_CHECK(index < units_.size(), "node " << value_of(node) << " was never opened");
  return units_[index];
}

/// Token passes, and what their attention reads: positions averaged over the layers.
std::uint64_t ReclaimQueue::cost_of(std::uint32_t first_position, std::uint32_t num_tokens) const {
  std::uint64_t read = 0;
  for (const KvLayerGroup& group : geometry_.groups) {
    const std::uint32_t seen =
        group.window_tokens == 0 ? first_position : std::min(first_position, group.window_tokens);
    read += std::uint64_t{seen} * group.num_layers;
  }
  read /= geometry_.num_layers();
  return num_tokens * (kCostOfToken + kCostOfToken * read / kPositionsPerToken);
}

std::uint64_t ReclaimQueue::value_of_unit(const ReclaimUnit& valued) const {
  if (policy_ == ReclaimPolicy::kLeastRecent) return 0;
  const Node& node = nodes_[value_of(valued.node)];
  std::uint64_t clock = 0;
  std::uint64_t num_blocks = 0;
  for (std::size_t group = 0; group < geometry_.groups.size(); ++group) {
    if (valued.group != ReclaimUnit::kWholeNode && valued.group != group) continue;
    if (valued.group == group && unit(valued.node, group).passed) return 0;
    clock = std::max(clock, unit(valued.node, group).clock);
    num_blocks += geometry_.blocks_per_stripe(group);
  }
  return clock + (1 + node.hits) * node.cost / num_blocks;
}

}  // namespace kvasir::kvcache
