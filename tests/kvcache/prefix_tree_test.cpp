// What is found by hash and what by order; the hash alone is never believed.
#include "kvcache/prefix_tree.h"

#include "core/rng.h"
#include "tests/support/aborts.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <vector>

namespace kvasir::kvcache {
namespace {

using Tokens = std::vector<TokenId>;
constexpr BlockHash kHash{1, 2};

/// One full and one windowed group, one block each in a stripe of four tokens.
KvGeometry two_groups() {
  KvGeometry geometry;
  geometry.groups = {{.num_layers = 1, .num_kv_heads = 1, .head_dim = 8, .window_tokens = 0},
                     {.num_layers = 1, .num_kv_heads = 1, .head_dim = 8, .window_tokens = 4}};
  geometry.block_tokens = 4;
  return geometry;
}

/// Every node has a block of its own number in each group.
void fill(PrefixTree& tree, NodeId node) {
  const BlockId block{value_of(node)};
  for (std::size_t group = 0; group < 2; ++group) tree.attach(node, group, {&block, 1});
}

NodeId add_partial(PrefixTree& tree, NodeId parent, const Tokens& tokens) {
  const NodeId node = tree.insert_partial({parent, 0, tokens});
  fill(tree, node);
  return node;
}

}  // namespace

TEST_CASE("PrefixTree: a collision in the hash is a miss", "[kvcache]") {
  PrefixTree tree(two_groups());
  const Tokens own{5, 6, 7, 8};
  const Tokens other{5, 6, 7, 9};
  const NodeId first = tree.insert_full(kHash, {kNoNode, 3, own});
  const NodeId second = tree.insert_full({9, 9}, {kNoNode, 3, other});
  CHECK(tree.find(kHash, {kNoNode, 3, own}) == first);
  CHECK(tree.find(kHash, {kNoNode, 3, other}) == kNoNode);
  CHECK(tree.find(kHash, {kNoNode, 4, own}) == kNoNode);
  CHECK(tree.find(kHash, {second, 3, own}) == kNoNode);
  CHECK(tree.find({1, 3}, {kNoNode, 3, own}) == kNoNode);
  CHECK(tree.find({2, 2}, {kNoNode, 3, own}) == kNoNode);
  CHECK(tree.insert_full(kHash, {kNoNode, 3, other}) == kNoNode);  // the first stays
  CHECK(tree.find(kHash, {kNoNode, 3, own}) == first);
  CHECK(tree.size() == 2);
  tree.check_integrity();
}

TEST_CASE("PrefixTree: an erased node is not found, and its number is used again", "[kvcache]") {
  PrefixTree tree(two_groups());
  const Tokens own{1, 2, 3, 4};
  const NodeId first = tree.insert_full(kHash, {kNoNode, 0, own});
  tree.erase(first);
  CHECK(tree.find(kHash, {kNoNode, 0, own}) == kNoNode);
  CHECK(tree.insert_full(kHash, {kNoNode, 0, own}) == first);
  tree.check_integrity();
}

TEST_CASE("PrefixTree: neither parents nor nodes with blocks can be erased", "[kvcache]") {
  PrefixTree tree(two_groups());
  const Tokens own{1, 2, 3, 4};
  const NodeId parent = tree.insert_full(kHash, {kNoNode, 0, own});
  const NodeId child = tree.insert_full({3, 4}, {parent, 0, own});
  CHECK(testing::aborts([&] { tree.erase(parent); }));
  fill(tree, child);
  CHECK(testing::aborts([&] { tree.erase(child); }));
  CHECK(testing::aborts([&] { fill(tree, child); }));
  tree.detach(child, 0);
  tree.detach(child, 1);
  tree.erase(child);
  tree.erase(parent);
  CHECK(tree.size() == 0);
  tree.check_integrity();
}

TEST_CASE("PrefixTree: only complete nodes of the same salt and parent lend their first tokens",
          "[kvcache]") {
  PrefixTree tree(two_groups());
  const Tokens own{1, 2, 3, 4};
  const Tokens wanted{1, 2, 9};
  const NodeId node = tree.insert_full(kHash, {kNoNode, 5, own});
  CHECK(tree.longest_shared({kNoNode, 5, wanted}).tokens == 0);
  const BlockId block{0};
  tree.attach(node, 0, {&block, 1});
  CHECK(tree.longest_shared({kNoNode, 5, wanted}).tokens == 0);
  tree.attach(node, 1, {&block, 1});
  CHECK(tree.longest_shared({kNoNode, 5, wanted}).tokens == 2);
  CHECK(tree.longest_shared({kNoNode, 5, wanted}).node == node);
  CHECK(tree.longest_shared({kNoNode, 6, wanted}).tokens == 0);
  CHECK(tree.longest_shared({node, 5, wanted}).tokens == 0);
  CHECK(tree.longest_shared({kNoNode, 5, Tokens{2}}).node == kNoNode);
  tree.detach(node, 1);
  CHECK(tree.longest_shared({kNoNode, 5, wanted}).tokens == 0);
  tree.check_integrity();
}

TEST_CASE("PrefixTree: of many siblings the one that shares most is found", "[kvcache]") {
  PrefixTree tree(two_groups());
  std::vector<Tokens> all;
  std::uint64_t draws = 0;
  const auto draw = [&] { return static_cast<TokenId>(mix64(++draws) % 3); };
  for (int i = 0; i < 200; ++i) {
    Tokens tokens(1 + mix64(++draws) % 3);
    std::ranges::generate(tokens, draw);
    if (std::ranges::find(all, tokens) != all.end()) continue;
    all.push_back(tokens);
    (void)add_partial(tree, kNoNode, tokens);
  }
  tree.check_integrity();
  for (int i = 0; i < 300; ++i) {
    Tokens wanted(1 + mix64(++draws) % 4);
    std::ranges::generate(wanted, draw);
    std::ptrdiff_t most = 0;
    for (const Tokens& tokens : all) {
      most = std::max(most, std::ranges::mismatch(tokens, wanted).in1 - tokens.begin());
    }
    CHECK(tree.longest_shared({kNoNode, 0, wanted}).tokens == most);
  }
}

TEST_CASE("PrefixTree: a node covers a shorter one of its first tokens", "[kvcache]") {
  PrefixTree tree(two_groups());
  const NodeId other = add_partial(tree, kNoNode, {1, 1});
  const NodeId shorter = add_partial(tree, kNoNode, {1, 2});
  const NodeId longer = add_partial(tree, kNoNode, {1, 2, 3});
  CHECK(tree.covered_by(longer) == shorter);
  CHECK(tree.covered_by(shorter) == kNoNode);
  CHECK(tree.covered_by(other) == kNoNode);
}

TEST_CASE("PrefixTree: a child hangs from a full node only", "[kvcache]") {
  PrefixTree tree(two_groups());
  const NodeId partial = add_partial(tree, kNoNode, {1, 2});
  const Tokens full{1, 2, 3, 4};
  CHECK(testing::aborts([&] { (void)tree.insert_full(kHash, {partial, 0, full}); }));
  CHECK(testing::aborts([&] { (void)tree.insert_partial({kNoNode, 0, full}); }));
  CHECK(testing::aborts([&] { (void)tree.insert_partial({kNoNode, 0, {}}); }));
}

}  // namespace kvasir::kvcache
