// Random operations on every kind of geometry against the model of truth in kv_world.
#include "tests/kvcache/kv_text.h"
#include "tests/kvcache/kv_world.h"
#include "tests/support/catch.h"

#include <string>
#include <vector>

namespace kvasir::kvcache {
namespace {

using namespace testing_kv;

/// Two names for all stripes in the world: chains are cut almost at once.
BlockHash weak_hash(const BlockHash& parent, std::span<const TokenId> tokens) {
  return {0, hash_block(parent, tokens).low % 2};
}

struct Shape {
  std::string name;
  std::vector<KvLayerGroup> groups;
  std::uint32_t largest_chunk = 8;
};

const std::vector<Shape> kShapes{
    {"one group", {layers(1, 0)}, 9},
    {"five windowed layers for each full one", {layers(5, 6), layers(1, 0)}, 7},
    {"nothing but windows", {layers(1, 7)}, 5},
    {"alternating", {layers(1, 0), layers(1, 10)}, 6},
    {"two windows and none", {layers(1, 3), layers(2, 13), layers(1, 0)}, 8},
    {"a window of one token", {layers(1, 1), layers(1, 5)}, 4},
};

void add(WorldTally& sum, const WorldTally& one) {
  sum.hits += one.hits;
  sum.partial_hits += one.partial_hits;
  sum.whole_hits += one.whole_hits;
  sum.forks += one.forks;
  sum.copies += one.copies;
  sum.failures += one.failures;
  sum.audits += one.audits;
  sum.audited_tokens += one.audited_tokens;
  sum.planted += one.planted;
}

/// The same in many worlds; returns what happened in all of them.
WorldTally run_worlds(const Shape& shape, std::uint64_t seeds, int actions) {
  WorldTally sum;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    const std::uint32_t stripes = 8 + static_cast<std::uint32_t>(mix64(seed) % 40);
    std::uint32_t stripe_blocks = 0;
    for (const KvLayerGroup& group : shape.groups) stripe_blocks += group.num_layers;
    KvCacheOptions options =
        cache_options(shape.groups, stripes * stripe_blocks, shape.largest_chunk);
    if (shape.groups.size() == 1) options.num_blocks = stripes;
    options.prefix_cache_enabled = seed % 7 != 0;
    if (seed % 5 == 0) options.hash = weak_hash;
    World world(options, seed);
    for (int i = 0; i < actions; ++i) {
      world.act();
      world.check();
    }
    world.end();
    add(sum, world.tally());
  }
  return sum;
}

}  // namespace

TEST_CASE("KvCacheManager: whatever happens, everybody finds what is theirs and nothing is lost",
          "[kvcache]") {
  const Shape shape = GENERATE(from_range(kShapes));
  CAPTURE(shape.name);
  const WorldTally tally = run_worlds(shape, 40, 250);
  CHECK(tally.hits > 100);
  CHECK(tally.partial_hits > 30);
  CHECK(tally.whole_hits > 5);
  CHECK(tally.forks > 50);
  CHECK(tally.copies > 50);
  CHECK(tally.failures > 20);
  CHECK(tally.audits > 20);
  CHECK(tally.audited_tokens > 100);
  CHECK(tally.planted > 3);
}

}  // namespace kvasir::kvcache
