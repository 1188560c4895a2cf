// The arena's tiles: aligned, disjoint, and together exactly the budget that was asked for.
#include "kvcache/kv_storage.h"

#include "tests/support/aborts.h"
#include "tests/support/catch.h"

#include <cstring>
#include <set>
#include <vector>

namespace kvasir::kvcache {
namespace {

KvGeometry small(KvType type, std::uint32_t head_dim) {
  return {
      .groups = {{.num_layers = 3, .num_kv_heads = 2, .head_dim = head_dim, .window_tokens = 0}},
      .type = type,
      .block_tokens = 16};
}

}  // namespace

TEST_CASE("KvStorage: tiles are aligned, do not overlap and fill the arena", "[kvcache]") {
  const KvGeometry geometry =
      GENERATE(small(KvType::kF16, 8), small(KvType::kF32, 64), small(KvType::kF16, 5));
  constexpr std::uint32_t kBlocks = 7;
  KvStorage storage(geometry, kBlocks);
  CHECK(storage.num_blocks() == kBlocks);
  CHECK(storage.size_bytes() == kBlocks * geometry.bytes_per_block());

  std::set<const std::byte*> tiles;
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      for (std::uint32_t head = 0; head < 2; ++head) {
        tiles.insert(storage.k_tile(layer, BlockId{block}, head));
        tiles.insert(storage.v_tile(layer, BlockId{block}, head));
      }
    }
  }
  REQUIRE(tiles.size() == 3 * kBlocks * 2 * 2);
  const std::uint64_t tile = geometry.tile_bytes(0);
  const std::byte* expected = *tiles.begin();
  for (const std::byte* const found : tiles) {
    REQUIRE(found == expected);  // so the next begins where this one ends
    REQUIRE(reinterpret_cast<std::uintptr_t>(found) % kTileAlignment == 0);
    expected += tile;
  }
  CHECK(expected == *tiles.begin() + storage.size_bytes());
}

TEST_CASE("KvStorage: what is written to a tile is read from it, to its last byte", "[kvcache]") {
  const KvGeometry geometry = small(KvType::kF16, 8);
  KvStorage storage(geometry, 5);
  const std::size_t tile = geometry.tile_bytes(0);
  std::memset(storage.k_tile(0, BlockId{0}, 0), 1, tile);
  std::memset(storage.v_tile(2, BlockId{4}, 1), 2, tile);
  const KvStorage& reader = storage;
  CHECK(reader.k_tile(0, BlockId{0}, 0)[tile - 1] == std::byte{1});
  CHECK(reader.v_tile(2, BlockId{4}, 1)[tile - 1] == std::byte{2});
  CHECK(reader.v_tile(0, BlockId{0}, 0)[0] == std::byte{0});
}

TEST_CASE("KvStorage: one block of a layer has its K heads side by side", "[kvcache]") {
  const KvGeometry geometry = small(KvType::kF32, 64);
  const KvStorage storage(geometry, 2);
  const std::size_t tile = geometry.tile_bytes(0);
  CHECK(storage.k_tile(1, BlockId{1}, 1) - storage.k_tile(1, BlockId{1}, 0) ==
        static_cast<std::ptrdiff_t>(tile));
  CHECK(storage.v_tile(1, BlockId{1}, 0) - storage.k_tile(1, BlockId{1}, 0) ==
        static_cast<std::ptrdiff_t>(2 * tile));
}

TEST_CASE("KvStorage: a copied block has the other's every tile, and its neighbours keep theirs",
          "[kvcache]") {
  const KvType type = GENERATE(KvType::kF32, KvType::kF16, KvType::kBf16);
  const std::uint32_t head_dim = GENERATE(8U, 5U);  // of 5, tiles end in padding
  const KvGeometry geometry = small(type, head_dim);
  constexpr std::uint32_t kBlocks = 5;
  KvStorage storage(geometry, kBlocks);
  const std::size_t tile = geometry.tile_bytes(0);
  // A tile's bytes say which it is.
  const auto mark = [](std::uint32_t layer, std::uint32_t block, std::uint32_t head, bool is_v) {
    return static_cast<int>(1 + block * 12 + layer * 4 + head * 2 + (is_v ? 1 : 0));
  };
  const auto each = [&](const auto& visit) {
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      for (std::uint32_t layer = 0; layer < 3; ++layer) {
        for (std::uint32_t head = 0; head < 2; ++head) visit(layer, block, head);
      }
    }
  };
  each([&](std::uint32_t layer, std::uint32_t block, std::uint32_t head) {
    std::memset(storage.k_tile(layer, BlockId{block}, head), mark(layer, block, head, false), tile);
    std::memset(storage.v_tile(layer, BlockId{block}, head), mark(layer, block, head, true), tile);
  });
  storage.copy_block(BlockId{4}, BlockId{1});
  storage.copy_block(BlockId{0}, BlockId{3});
  each([&](std::uint32_t layer, std::uint32_t block, std::uint32_t head) {
    const std::uint32_t origin = block == 1 ? 4 : block == 3 ? 0 : block;
    const std::vector<std::byte> k(tile, std::byte(mark(layer, origin, head, false)));
    const std::vector<std::byte> v(tile, std::byte(mark(layer, origin, head, true)));
    CHECK(std::memcmp(storage.k_tile(layer, BlockId{block}, head), k.data(), tile) == 0);
    CHECK(std::memcmp(storage.v_tile(layer, BlockId{block}, head), v.data(), tile) == 0);
  });
  CHECK(testing::aborts([&] { storage.copy_block(BlockId{1}, BlockId{1}); }));
  CHECK(testing::aborts([&] { storage.copy_block(BlockId{5}, BlockId{1}); }));
  CHECK(testing::aborts([&] { storage.copy_block(BlockId{1}, BlockId{5}); }));
}

TEST_CASE("KvStorage: groups share blocks of one size, and others are refused", "[kvcache]") {
  KvGeometry geometry = small(KvType::kF16, 8);  // 3 layers
  geometry.groups.push_back(geometry.groups[0]);
  geometry.groups[1].num_layers = 6;
  CHECK(KvStorage(geometry, 2).size_bytes() == 2 * small(KvType::kF16, 8).bytes_per_block());
  geometry.groups[1].head_dim = 16;
  CHECK(testing::aborts([&] { KvStorage(geometry, 1); }));
}

TEST_CASE("KvStorage: slots are compared in both halves, and no further than asked", "[kvcache]") {
  for (const KvType type : {KvType::kF32, KvType::kF16}) {
    const KvGeometry geometry = small(type, 8);
    KvStorage storage(geometry, 2);
    const std::size_t element = element_bytes(type);
    const std::size_t slot = 5;
    const std::size_t dimension = 3;
    CHECK(storage.same_slots(BlockId{0}, BlockId{1}, geometry.block_tokens));
    const std::size_t k_offset = (dimension * geometry.block_tokens + slot) * element;
    storage.k_tile(2, BlockId{1}, 1)[k_offset] = std::byte{1};
    CHECK(storage.same_slots(BlockId{0}, BlockId{1}, 5));
    CHECK_FALSE(storage.same_slots(BlockId{0}, BlockId{1}, 6));
    storage.k_tile(2, BlockId{1}, 1)[k_offset] = std::byte{0};
    storage.v_tile(0, BlockId{0}, 0)[(slot * 8 + dimension) * element] = std::byte{1};
    CHECK(storage.same_slots(BlockId{0}, BlockId{1}, 5));
    CHECK_FALSE(storage.same_slots(BlockId{0}, BlockId{1}, 6));
  }
}

}  // namespace kvasir::kvcache
