#include "bench/kernels/attention.h"

#include "kvcache/kv_storage.h"
#include "runtime/step_memory.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

namespace kvasir::bench {
namespace {

using namespace kvasir::runtime;

constexpr std::uint32_t kBlockTokens = 32, kGroupHeads = 3;
/// More than any L3 cache that one core sees most of.
constexpr std::size_t kMemoryBytes = std::size_t{192} << 20;

struct Shape {
  std::uint32_t head_dim, num_rows, num_positions;
  bool from_memory;
};

/// The arena of one layer and KV head, huge pages and all.
kvcache::KvGeometry geometry(std::uint32_t head_dim) {
  kvcache::KvGeometry geometry;
  geometry.groups = {{1, 1, head_dim, 0}};
  geometry.block_tokens = kBlockTokens;
  return geometry;
}

/// K and V tiles of sequences whose blocks are in a random order. All values are 0.
struct Tiles {
  explicit Tiles(const Shape& shape)
      : num_blocks((shape.num_positions + kBlockTokens - 1) / kBlockTokens),
        num_sequences(shape.from_memory
                          ? kMemoryBytes / (num_blocks * geometry(shape.head_dim).bytes_per_block())
                          : 1),
        storage(geometry(shape.head_dim), static_cast<std::uint32_t>(num_blocks * num_sequences)) {
    // Written once: pages that never were are all the same page of zeros.
    std::memset(storage.k_tile(0, BlockId{0}, 0), 0, storage.size_bytes());
    std::vector<std::uint32_t> order(storage.num_blocks());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(1));  // NOLINT: any order, but the same
    for (const std::uint32_t block : order) {
      k.push_back(storage.k_tile(0, BlockId{block}, 0));
      v.push_back(storage.v_tile(0, BlockId{block}, 0));
    }
  }
  std::size_t num_blocks, num_sequences;
  kvcache::KvStorage storage;
  std::vector<const std::byte*> k, v;  // [sequences][blocks]
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Seconds of one call: the median of five rounds of about 20 ms. call(i) is the i-th call.
template <typename Call>
double median_seconds(const Call& call) {
  std::size_t calls = 0;
  std::array<double, 5> rounds{};
  for (double& round : rounds) {
    const auto start = std::chrono::steady_clock::now();
    std::size_t in_round = 0;
    for (; in_round == 0 || seconds_since(start) < 0.02; ++in_round) call(calls++);
    round = seconds_since(start) / static_cast<double>(in_round);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[2];
}

void bench_shape(const KernelTable& table, const Shape& shape) {
  const Tiles tiles(shape);
  const std::vector<float> q(shape.head_dim, 0.1F);
  std::vector<float> out(std::size_t{shape.num_rows} * shape.head_dim);
  const std::size_t scratch_floats = table.attention_kernels->scratch_floats(shape.head_dim);
  StepMemory memory(StepMemory::bytes_of<float>(scratch_floats));
  const std::span<float> scratch = memory.take<float>(scratch_floats);
  std::vector<AttentionRow> rows;
  double seen = 0.0;
  for (std::uint32_t r = 0; r < shape.num_rows; ++r) {
    const std::uint32_t back = (shape.num_rows - 1 - r) / kGroupHeads;
    rows.push_back({q.data(), 0, shape.num_positions - 1 - back,
                    out.data() + std::size_t{r} * shape.head_dim, nullptr});
    seen += rows.back().position + 1.0;
  }
  AttentionTask task;
  task.element = KvElement::kF16;
  task.block_tokens = kBlockTokens;
  task.head_dim = shape.head_dim;
  task.end_range = (shape.num_positions - 1) / kAttentionRange + 1;
  task.rows = rows.data();
  task.num_rows = shape.num_rows;
  task.scale = 0.125F;
  task.scratch = scratch.data();
  const double seconds = median_seconds([&](std::size_t i) {
    const std::size_t first = i % tiles.num_sequences * tiles.num_blocks;
    const std::size_t next = (i + 1) % tiles.num_sequences * tiles.num_blocks;
    task.k_tiles = &tiles.k[first];
    task.v_tiles = &tiles.v[first];
    task.next_tiles[0] = tiles.k[next];
    task.next_tiles[1] = tiles.k[next + 1];
    table.attention_kernels->attend(task);
  });
  const double bytes = 4.0 * shape.head_dim * shape.num_positions;
  std::printf(
      "%-7s attention f16, head_dim %3u, %2u rows, %4u positions %-11s: %8.2f us %7.1f GFLOP/s "
      "%6.2f GB/s\n",
      table.name, shape.head_dim, shape.num_rows, shape.num_positions,
      shape.from_memory ? "from memory" : "cached", seconds * 1e6,
      4.0 * shape.head_dim * seen / seconds * 1e-9, bytes / seconds * 1e-9);
}

}  // namespace

void bench_attention(const KernelTable& table) {
  for (const std::uint32_t head_dim : {64U, 128U}) {
    for (const std::uint32_t num_rows : {1U, 3U, 9U, 16U, 48U, 64U}) {
      for (const std::uint32_t num_positions : {128U, 512U, 4096U}) {
        for (const bool from_memory : {false, true}) {
          bench_shape(table, {head_dim, num_rows, num_positions, from_memory});
        }
      }
    }
  }
}

}  // namespace kvasir::bench
