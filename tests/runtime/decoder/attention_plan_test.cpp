// What a step's attention is divided into: every row meets every one of its ranges once, partial
// results have places of their own, and no worker has much more to do than another.
#include "runtime/model/attention_plan.h"

#include "runtime/kernels/attention_kernels.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <malloc.h>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

using namespace kvasir;
using namespace kvasir::runtime;

namespace {

struct ChunkShape {
  std::uint32_t first_position = 0, num_tokens = 1;
  /// Which prefix it has, and for how many positions; blocks after it are its own.
  std::uint32_t prefix = 0, prefix_tokens = 0;
  std::uint32_t first_query = 0;
};

struct Heads {
  std::uint32_t num_heads = 9, num_kv_heads = 3;
};

/// A batch of chunks whose block tables have the prefixes that the shapes say.
struct Scene {
  Scene(const std::vector<ChunkShape>& shapes, std::uint32_t block_tokens, std::uint32_t group = 0,
        std::uint32_t blocks_per_stripe = 1) {
    std::uint32_t next_block = 1'000'000;
    for (const ChunkShape& shape : shapes) {
      const std::uint32_t end = shape.first_position + shape.num_tokens;
      std::vector<BlockId> table;
      for (std::uint32_t begin = 0; begin < end; begin += block_tokens) {
        const bool shared = begin + block_tokens <= shape.prefix_tokens;
        for (std::uint32_t i = 0; i < blocks_per_stripe; ++i) {
          const std::uint32_t place = begin / block_tokens * blocks_per_stripe + i;
          table.push_back(BlockId{shared ? shape.prefix * 10'000 + place : next_block++});
        }
      }
      tables.push_back(table);
      first_query.push_back(shape.first_query);
    }
    for (std::size_t c = 0; c < shapes.size(); ++c) {
      BatchChunk chunk;
      chunk.first_position = shapes[c].first_position;
      chunk.num_tokens = shapes[c].num_tokens;
      chunk.block_tables[group] = tables[c];
      batch.num_tokens += chunk.num_tokens;
      batch.chunks.push_back(chunk);
    }
  }
  std::vector<std::vector<BlockId>> tables;
  std::vector<std::uint32_t> first_query;
  Batch batch;
};

AttentionPlanLimits make_limits(Heads heads, std::uint32_t num_threads,
                                std::uint32_t block_tokens) {
  AttentionPlanLimits limits;
  limits.num_threads = num_threads;
  limits.max_step_tokens = 512;
  limits.max_chunks = 64;
  limits.num_heads = heads.num_heads;
  limits.num_kv_heads = heads.num_kv_heads;
  limits.block_tokens = block_tokens;
  limits.max_partials = 100'000;
  return limits;
}

std::uint32_t first_seen(const AttentionPlanLimits& limits, std::uint32_t position) {
  const std::uint32_t window = limits.window_tokens;
  return window == 0 || position < window ? 0 : position + 1 - window;
}

std::uint32_t num_rows(const AttentionPlan& plan, const AttentionWork& work) {
  std::uint32_t rows = 0;
  for (std::uint32_t m = 0; m < work.num_members; ++m) {
    const RowBlock& block = plan.row_block(work.first_member + m);
    rows += block.num_queries * plan.head_group(block).num_heads;
  }
  return rows;
}

struct Found {
  std::size_t shared_works = 0;  // items of several sequences
  std::uint64_t loads = 0;       // positions read, over all items
  double worst_share = 0.0;      // of the busiest worker, 1 being its fair one
};

/// Checks everything that must hold of any plan.
Found check_plan(const AttentionPlan& plan, const Scene& scene, const AttentionPlanLimits& limits) {
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;  // chunk, query, head
  std::map<Key, std::multiset<std::uint32_t>> ranges_of;
  std::map<Key, std::size_t> tasks_of;
  std::set<Key> has_partials;
  std::map<std::uint64_t, Key> places;
  Found found;
  std::vector<double> costs(limits.num_threads);
  for (std::uint32_t worker = 0; worker < limits.num_threads; ++worker) {
    plan.for_each_work(worker, [&](const AttentionWork& work) {
      REQUIRE(work.num_members >= 1);
      const std::uint32_t rows = num_rows(plan, work);
      REQUIRE(rows <= kMaxAttentionRows);
      const RowBlock& leader = plan.row_block(work.first_member);
      const BatchChunk& leading = scene.batch.chunks[leader.chunk];
      std::uint32_t end_position = 0;
      for (std::uint32_t m = 0; m < work.num_members; ++m) {
        const RowBlock& block = plan.row_block(work.first_member + m);
        const BatchChunk& chunk = scene.batch.chunks[block.chunk];
        REQUIRE(block.head_group == leader.head_group);
        REQUIRE(block.first_query >= scene.first_query[block.chunk]);
        end_position =
            std::max(end_position, chunk.first_position + block.first_query + block.num_queries);
        if (work.num_members > 1) {
          // The same blocks, and all of them seen.
          const std::uint32_t first_position = chunk.first_position + block.first_query;
          REQUIRE(work.end_range * kAttentionRange <= first_position + 1);
          REQUIRE(first_seen(limits, first_position + block.num_queries - 1) <=
                  work.first_range * kAttentionRange);
          const std::uint32_t per_range =
              kAttentionRange / limits.block_tokens * limits.blocks_per_stripe;
          const auto first = work.first_range * per_range, end = work.end_range * per_range;
          const auto blocks = chunk.block_tables[limits.group];
          REQUIRE(std::equal(blocks.begin() + first, blocks.begin() + end,
                             leading.block_tables[limits.group].begin() + first));
        }
        const HeadGroup& heads = plan.head_group(block);
        for (std::uint32_t q = 0; q < block.num_queries; ++q) {
          for (std::uint32_t h = 0; h < heads.num_heads; ++h) {
            const Key key{block.chunk, block.first_query + q, heads.first_head + h};
            ++tasks_of[key];
            for (std::uint32_t r = work.first_range; r < work.end_range; ++r) {
              const std::uint32_t position = chunk.first_position + block.first_query + q;
              const std::uint32_t first_range = first_seen(limits, position) / kAttentionRange;
              if (r < first_range || r > position / kAttentionRange) continue;
              ranges_of[key].insert(r);
              if (block.first_partial == RowBlock::kNoPartials) continue;
              has_partials.insert(key);
              const std::uint64_t place =
                  block.first_partial +
                  (std::uint64_t{q} * heads.num_heads + h) * block.num_ranges() + r - first_range;
              if (place >= limits.max_partials) FAIL("no room for partial result " << place);
              if (place >= plan.num_partials()) FAIL("partial result " << place << " not counted");
              if (!places.emplace(place, key).second) FAIL("two rows have place " << place);
            }
          }
        }
      }
      found.shared_works += work.num_members > 1 ? 1 : 0;
      const std::uint32_t positions =
          std::min(end_position, work.end_range * kAttentionRange) -
          std::max(work.first_range * kAttentionRange,
                   first_seen(limits, leading.first_position + leader.first_query));
      found.loads += positions;
      costs[worker] += (rows + 4.0) * positions;
    });
  }
  std::set<Key> merged;
  for (std::uint32_t worker = 0; worker < limits.num_threads; ++worker) {
    if (!plan.needs_merge()) break;
    plan.for_each_merge(worker, [&](const RowBlock& block, std::uint32_t row) {
      const HeadGroup& heads = plan.head_group(block);
      const Key key{block.chunk, block.first_query + row / heads.num_heads,
                    heads.first_head + row % heads.num_heads};
      if (!merged.insert(key).second) FAIL("a row is merged twice");
    });
  }
  CHECK(merged == has_partials);
  CHECK(plan.needs_merge() == !has_partials.empty());

  std::size_t num_keys = 0;
  for (std::uint32_t c = 0; c < scene.batch.chunks.size(); ++c) {
    const BatchChunk& chunk = scene.batch.chunks[c];
    for (std::uint32_t q = scene.first_query[c]; q < chunk.num_tokens; ++q) {
      for (std::uint32_t h = 0; h < limits.num_heads; ++h) {
        const Key key{c, q, h};
        ++num_keys;
        std::multiset<std::uint32_t> expected;
        const std::uint32_t position = chunk.first_position + q;
        for (std::uint32_t r = first_seen(limits, position) / kAttentionRange;
             r <= position / kAttentionRange; ++r) {
          expected.insert(r);
        }
        if (ranges_of[key] != expected) FAIL("chunk " << c << ", query " << q << ", head " << h);
        if (!has_partials.contains(key) && tasks_of[key] != 1) FAIL("a row in parts is not merged");
      }
    }
  }
  CHECK(ranges_of.size() == num_keys);
  double total = 0.0;
  for (const double cost : costs) total += cost;
  for (const double cost : costs) {
    found.worst_share = std::max(found.worst_share, cost * limits.num_threads / total);
  }
  return found;
}

Found plan_and_check(const std::vector<ChunkShape>& shapes, AttentionPlanLimits limits) {
  const Scene scene(shapes, limits.block_tokens, limits.group, limits.blocks_per_stripe);
  AttentionPlan plan(limits);
  plan.build(scene.batch, scene.first_query);
  return check_plan(plan, scene, limits);
}

std::vector<ChunkShape> decodes(std::uint32_t count, std::uint32_t position) {
  return std::vector<ChunkShape>(count, ChunkShape{position, 1});
}

}  // namespace

TEST_CASE("AttentionPlan: every row meets each of its ranges once", "[runtime]") {
  std::mt19937 random(7);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (int round = 0; round < 24; ++round) {
    INFO("round " << round);
    std::vector<ChunkShape> shapes;
    std::uint32_t tokens_left = 512;
    for (std::uint32_t c = 1 + below(20); c > 0; --c) {
      ChunkShape shape;
      shape.first_position = below(2) == 0 ? below(2000) : 256 * below(8) + below(12) + 246;
      shape.num_tokens = std::min(tokens_left, below(3) == 0 ? 1 + below(200) : 1 + below(4));
      if (shape.num_tokens == 0) break;
      tokens_left -= shape.num_tokens;
      shape.prefix = below(3);
      shape.prefix_tokens = below(2) == 0 ? 0 : below(2000);
      shape.first_query = below(4) == 0 ? below(shape.num_tokens + 1) : 0;
      shapes.push_back(shape);
    }
    for (const Heads heads : {Heads{9, 3}, Heads{4, 4}, Heads{12, 2}, Heads{71, 1}}) {
      for (const std::uint32_t num_threads : {1U, 2U, 3U, 8U}) {
        auto limits = make_limits(heads, num_threads, 16U << below(3));
        // With room for all partial results, some, few and none.
        if (round % 4 == 1) limits.max_partials = 500;
        if (round % 4 == 2) limits.max_partials = 40;
        if (round % 4 == 3) limits.max_partials = 0;
        plan_and_check(shapes, limits);
        limits.window_tokens = 1 + below(below(2) == 0 ? 40 : 1500);
        limits.group = 1;
        limits.blocks_per_stripe = 5;
        plan_and_check(shapes, limits);
      }
    }
  }
}

TEST_CASE(
    "AttentionPlan: behind a window nothing is read, and nobody has much more to do than another",
    "[runtime]") {
  auto limits = make_limits({4, 1}, 2, 32);
  limits.window_tokens = 512;
  limits.blocks_per_stripe = 5;
  // 512 positions of one query; of 512 queries, in blocks of 15 or 14, 526 at most.
  CHECK(plan_and_check(decodes(1, 20'000), limits).loads == 512);
  CHECK(plan_and_check({{20'000, 512}}, limits).loads <= 35 * 526);
  CHECK(plan_and_check({{20'000, 512}}, limits).worst_share < 1.05);
  CHECK(plan_and_check(decodes(8, 20'000), limits).worst_share < 1.05);
  CHECK(plan_and_check({{20'000, 400}, {3'000, 1}, {100, 1}}, limits).worst_share < 1.1);
  // A prefix is shared while all of it is seen.
  const std::vector<ChunkShape> forks(21, ChunkShape{600, 1, 0, 512});
  CHECK(plan_and_check(forks, limits).shared_works == 0);
  limits.window_tokens = 601;
  CHECK(plan_and_check(forks, limits).loads == 2 * 512 + 21 * 89);
}

TEST_CASE("AttentionPlan: an empty step and one without queries", "[runtime]") {
  const auto limits = make_limits({9, 3}, 2, 32);
  plan_and_check({}, limits);
  plan_and_check({{100, 7, 0, 0, 7}}, limits);
}

TEST_CASE("AttentionPlan: the longest step with one query in a block is covered", "[runtime]") {
  // 65536 queries in 65536 blocks: their product once wrapped to 0 and left the last one out.
  constexpr std::uint32_t kTokens = 65'536;
  auto limits = make_limits({32, 1}, 2, 32);
  limits.max_step_tokens = kTokens;
  AttentionPlan plan(limits);
  const Scene scene({{0, kTokens}}, 32);
  plan.build(scene.batch, scene.first_query);
  std::uint64_t num_queries = 0;
  std::uint32_t last_end = 0;
  for (std::uint32_t worker = 0; worker < 2; ++worker) {
    plan.for_each_work(worker, [&](const AttentionWork& work) {
      const RowBlock& block = plan.row_block(work.first_member);
      REQUIRE(block.num_queries >= 1);
      REQUIRE(block.num_queries <= kMaxAttentionRows / 32);
      if (work.first_range == 0) num_queries += block.num_queries;
      last_end = std::max(last_end, block.first_query + block.num_queries);
    });
  }
  CHECK(num_queries == kTokens);
  CHECK(last_end == kTokens);
}

TEST_CASE("AttentionPlan: no worker has much more to do than another", "[runtime]") {
  // What is allowed above the fair share: half a range at each end of a long item, or what a cut
  // would not be worth.
  for (const std::uint32_t num_threads : {1U, 2U, 3U, 8U}) {
    INFO(num_threads << " threads");
    const auto limits = make_limits({9, 3}, num_threads, 32);
    CHECK(plan_and_check(decodes(1, 20'000), limits).worst_share < 1.05);
    CHECK(plan_and_check(decodes(1, 8'000), limits).worst_share < 1.1);
    CHECK(plan_and_check(decodes(5, 4'000), limits).worst_share < 1.1);
    CHECK(plan_and_check(decodes(64, 300), limits).worst_share < 1.1);
    CHECK(plan_and_check({{0, 512}}, limits).worst_share < 1.15);
    CHECK(plan_and_check({{7'500, 500}}, limits).worst_share < 1.1);
    CHECK(plan_and_check({{7'500, 400}, {3'000, 1}, {100, 1}}, limits).worst_share < 1.1);
    CHECK(plan_and_check(decodes(1, 20'000), make_limits({1, 1}, num_threads, 32)).worst_share <
          1.1);
  }
  // Nothing to cut inside: the border after the second of 31, 101 and 101 positions is the nearer.
  CHECK(plan_and_check({{30, 1}, {100, 1}, {100, 1}}, make_limits({1, 1}, 2, 32)).worst_share <
        1.2);
}

TEST_CASE("AttentionPlan: one thread needs no partial results without shared prefixes",
          "[runtime]") {
  const auto limits = make_limits({9, 3}, 1, 32);
  const Scene scene({{4'000, 1}, {900, 200}, {2'000, 5}}, 32);
  AttentionPlan plan(limits);
  plan.build(scene.batch, scene.first_query);
  CHECK_FALSE(plan.needs_merge());
}

TEST_CASE("AttentionPlan: a prefix that sequences share is read once", "[runtime]") {
  const auto limits = make_limits({9, 3}, 2, 32);
  const auto shared = [](std::uint32_t count, std::uint32_t prefix, std::uint32_t tokens,
                         std::uint32_t position) {
    return std::vector<ChunkShape>(count, ChunkShape{position, 1, prefix, tokens});
  };
  // 21 sequences of three rows fill a task: 63 rows over 1,024 positions, and 100 of each alone.
  const auto full = plan_and_check(shared(21, 0, 1024, 1123), limits);
  CHECK(full.loads == 3 * (1024 + 21 * 100));
  CHECK(full.worst_share < 1.1);
  // Less than a whole range is read by each.
  CHECK(plan_and_check(shared(8, 0, 255, 1000), limits).shared_works == 0);
  // What they save must be worth the partial results of all ranges: one of sixteen is not.
  CHECK(plan_and_check(shared(2, 0, 256, 4095), limits).shared_works == 0);
  CHECK(plan_and_check(shared(2, 0, 2048, 2100), limits).shared_works > 0);

  // A prefix of a prefix: eight share 512, of which four share 1,536 and two others 1,024.
  std::vector<ChunkShape> nested = shared(2, 0, 512, 700);
  for (const auto& more : {shared(4, 1, 1536, 1600), shared(2, 2, 1024, 1100)}) {
    nested.insert(nested.end(), more.begin(), more.end());
  }
  Scene scene(nested, 32);
  for (auto& table : scene.tables) {
    for (std::uint32_t b = 0; b < 512 / 32; ++b) table[b] = BlockId{b};
  }
  AttentionPlan plan(limits);
  plan.build(scene.batch, scene.first_query);
  const Found found = check_plan(plan, scene, limits);
  const std::uint64_t own = 2 * 189 + 4 * 65 + 2 * 77;  // behind the prefixes
  CHECK(found.loads == 3 * (512 + 1024 + 512 + own));
}

TEST_CASE("AttentionPlan: who shares a prefix need not be neighbours in the step", "[runtime]") {
  std::vector<ChunkShape> mixed;
  for (std::uint32_t c = 0; c < 12; ++c) mixed.push_back({600 + 8 * c, 1, c % 2, 512});
  const auto found = plan_and_check(mixed, make_limits({9, 3}, 2, 32));
  std::uint64_t own = 0;
  for (const ChunkShape& shape : mixed) own += shape.first_position + 1 - 512;
  CHECK(found.loads == 3 * (2 * 512 + own));
}

TEST_CASE("AttentionPlan: building allocates nothing", "[runtime]") {
  const auto limits = make_limits({9, 3}, 3, 32);
  std::vector<ChunkShape> small;  // every chunk shares one range more than the one before it
  for (std::uint32_t c = 0; c < 64; ++c) {
    small.push_back({256 * (c + 1) + 10, 1, 0, 256 * (c + 1)});
  }
  const Scene chain(small, 32), large({{0, 512}}, 32);
  std::vector<ChunkShape> full(64, ChunkShape{1000, 8});
  const Scene many(full, 32);
  AttentionPlan plan(limits);
  const auto allocated = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const std::size_t before = allocated();
  for (const Scene* scene : {&chain, &large, &many}) {
    plan.build(scene->batch, scene->first_query);
  }
  CHECK(allocated() == before);
  plan.build(chain.batch, chain.first_query);
  CHECK(check_plan(plan, chain, limits).shared_works > 0);
}
