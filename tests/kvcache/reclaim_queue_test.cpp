// The order in which units go: contents are not needed to see it.
#include "kvcache/reclaim_queue.h"

#include "tests/kvcache/kv_text.h"
#include "tests/support/aborts.h"
#include "tests/support/catch.h"

#include <cstdint>
#include <vector>

namespace kvasir::kvcache {
namespace {

using namespace testing_kv;

constexpr std::uint32_t kWhole = ReclaimUnit::kWholeNode;

KvGeometry geometry_of(std::vector<KvLayerGroup> groups) {
  return cache_options(std::move(groups), 1).geometry;
}

/// A leaf that was used just now, at a depth in stripes.
void add_leaf(ReclaimQueue& queue, std::uint32_t node, std::uint32_t depth,
              std::uint32_t num_tokens = kSlots) {
  queue.open(NodeId{node}, depth, num_tokens);
  queue.used(NodeId{node}, 0);
}

void offer(ReclaimQueue& queue, std::uint32_t node) { queue.offer({NodeId{node}, kWhole}, false); }

/// Takes all and says in which order.
std::vector<std::uint32_t> order_of(ReclaimQueue& queue) {
  std::vector<std::uint32_t> order;
  while (const auto unit = queue.next()) {
    order.push_back(value_of(unit->node));
    queue.take(*unit);
  }
  return order;
}

}  // namespace

TEST_CASE("ReclaimQueue: of equal value the least recently used goes first", "[kvcache]") {
  ReclaimQueue queue(geometry_of({layers(1, 0)}), ReclaimPolicy::kCostAware);
  for (std::uint32_t node = 0; node < 4; ++node) add_leaf(queue, node, 0);
  queue.used(NodeId{1}, 0);
  for (std::uint32_t node = 0; node < 4; ++node) offer(queue, node);
  CHECK(order_of(queue) == std::vector<std::uint32_t>{0, 2, 3, 1});
}

TEST_CASE("ReclaimQueue: what costs more to recompute goes later", "[kvcache]") {
  ReclaimQueue queue(geometry_of({layers(1, 0)}), ReclaimPolicy::kCostAware);
  add_leaf(queue, 0, 2000);  // the attention of position 8000
  add_leaf(queue, 1, 0);
  add_leaf(queue, 2, 0, 1);  // one token
  for (std::uint32_t node = 0; node < 3; ++node) offer(queue, node);
  CHECK(order_of(queue) == std::vector<std::uint32_t>{2, 1, 0});
}

TEST_CASE("ReclaimQueue: what was hit goes later, and what follows it too", "[kvcache]") {
  ReclaimQueue queue(geometry_of({layers(1, 0)}), ReclaimPolicy::kCostAware);
  for (std::uint32_t node = 0; node < 4; ++node) add_leaf(queue, node, 0);
  queue.hit(NodeId{0});
  queue.hit(NodeId{0});
  queue.hit(NodeId{1});
  queue.follow(NodeId{2}, NodeId{0});
  for (std::uint32_t node = 0; node < 4; ++node) offer(queue, node);
  CHECK(order_of(queue) == std::vector<std::uint32_t>{3, 1, 0, 2});
}

TEST_CASE("ReclaimQueue: nothing is kept for ever, however often it was hit", "[kvcache]") {
  ReclaimQueue queue(geometry_of({layers(1, 0)}), ReclaimPolicy::kCostAware);
  add_leaf(queue, 0, 0);
  for (int i = 0; i < 1000; ++i) queue.hit(NodeId{0});
  offer(queue, 0);
  // Newcomers come and go until it is the old one's turn.
  std::uint32_t node = 0;
  do {
    ++node;
    REQUIRE(node < 20);
    add_leaf(queue, node, 0);
    offer(queue, node);
    const auto next = queue.next();
    queue.take(*next);
    if (next->node == NodeId{0}) break;
  } while (true);
  CHECK(node > 2);
}

TEST_CASE("ReclaimQueue: what a window has passed goes first, unless hits may end there",
          "[kvcache]") {
  ReclaimQueue queue(geometry_of({layers(1, 8), layers(1, 0)}), ReclaimPolicy::kCostAware);
  for (std::uint32_t node = 0; node < 3; ++node) queue.open(NodeId{node}, 5, kSlots);
  queue.used(NodeId{0}, 0);
  queue.anchor(NodeId{1}, 0);
  queue.passed(NodeId{1}, 0);
  queue.passed(NodeId{2}, 0);
  for (std::uint32_t node = 0; node < 3; ++node) queue.offer({NodeId{node}, 0}, false);
  CHECK(order_of(queue) == std::vector<std::uint32_t>{2, 0, 1});
}

TEST_CASE("ReclaimQueue: what no hit can use goes first", "[kvcache]") {
  ReclaimQueue queue(geometry_of({layers(1, 0)}), ReclaimPolicy::kCostAware);
  add_leaf(queue, 0, 0);
  add_leaf(queue, 1, 0);
  offer(queue, 0);
  queue.offer({NodeId{1}, kWhole}, true);
  CHECK(order_of(queue) == std::vector<std::uint32_t>{1, 0});
}

TEST_CASE("ReclaimQueue: by last use alone neither cost nor hits count", "[kvcache]") {
  ReclaimQueue queue(geometry_of({layers(1, 0)}), ReclaimPolicy::kLeastRecent);
  add_leaf(queue, 0, 2000);
  queue.hit(NodeId{0});
  add_leaf(queue, 1, 0);
  offer(queue, 1);
  offer(queue, 0);
  CHECK(order_of(queue) == std::vector<std::uint32_t>{0, 1});
}

TEST_CASE("ReclaimQueue: offers are taken back, and an open unit is not opened again",
          "[kvcache]") {
  ReclaimQueue queue(geometry_of({layers(1, 0)}), ReclaimPolicy::kCostAware);
  add_leaf(queue, 0, 0);
  offer(queue, 0);
  offer(queue, 0);
  CHECK(queue.size() == 1);
  CHECK(testing::aborts([&] { queue.open(NodeId{0}, 0, kSlots); }));
  queue.withdraw({NodeId{0}, kWhole});
  queue.withdraw({NodeId{0}, kWhole});
  CHECK_FALSE(queue.next().has_value());
  CHECK_FALSE(queue.is_offered({NodeId{0}, kWhole}));
}

}  // namespace kvasir::kvcache
