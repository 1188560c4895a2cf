// The arithmetic of bytes, blocks and tokens, against numbers worked out by hand.
#include "kvcache/kv_geometry.h"

#include "tests/support/catch.h"

namespace kvasir::kvcache {
namespace {

KvGeometry smollm2(KvType type, std::uint32_t block_tokens) {
  return {.groups = {{.num_layers = 30, .num_kv_heads = 3, .head_dim = 64, .window_tokens = 0}},
          .type = type,
          .block_tokens = block_tokens};
}

}  // namespace

TEST_CASE("KvGeometry: bytes count both halves, all layers and the KV heads", "[kvcache]") {
  CHECK(smollm2(KvType::kF16, 32).bytes_per_token() == 23'040);
  CHECK(smollm2(KvType::kBf16, 32).bytes_per_token() == 23'040);
  CHECK(smollm2(KvType::kF32, 32).bytes_per_token() == 46'080);
  CHECK(smollm2(KvType::kF16, 32).bytes_per_block() == 23'040 * 32);
  CHECK(smollm2(KvType::kF16, 16).bytes_per_block() == 23'040 * 16);
  CHECK(smollm2(KvType::kF16, 16).tile_bytes(0) == 64 * 16 * 2);
}

TEST_CASE("KvGeometry: a block charges the padding of its tiles", "[kvcache]") {
  const KvGeometry odd{
      .groups = {{.num_layers = 2, .num_kv_heads = 1, .head_dim = 3, .window_tokens = 0}},
      .type = KvType::kF16,
      .block_tokens = 16};
  CHECK(odd.tile_bytes(0) == 128);  // 3 * 16 * 2 = 96, on to the next cache line
  CHECK(odd.bytes_per_token() == 2 * 2 * 3 * 2);
  CHECK(odd.bytes_per_block() == 2 * 2 * 128);
}

TEST_CASE("KvGeometry: groups add up, and share blocks of one size", "[kvcache]") {
  // As in Gemma 3 270M: 18 layers, each sixth of them without a window.
  KvGeometry mixed{
      .groups = {{.num_layers = 15, .num_kv_heads = 1, .head_dim = 256, .window_tokens = 512},
                 {.num_layers = 3, .num_kv_heads = 1, .head_dim = 256, .window_tokens = 0}},
      .type = KvType::kF16,
      .block_tokens = 32,
      .largest_chunk = 64};
  for (std::uint32_t layer = 0; layer < 18; ++layer) {
    mixed.group_of_layer.push_back(layer % 6 == 5 ? 1 : 0);
  }
  CHECK(mixed.bytes_per_token() == 2 * 18 * 256 * 2);
  CHECK(mixed.layers_per_block() == 3);
  CHECK(mixed.blocks_per_stripe(0) == 5);
  CHECK(mixed.blocks_per_stripe(1) == 1);
  CHECK(mixed.blocks_per_stripes() == 6);
  CHECK(mixed.bytes_per_block() == 32 * 2 * 3 * 256 * 2);
  CHECK(mixed.place(0) == LayerPlace{0, 0, 0});
  CHECK(mixed.place(5) == LayerPlace{1, 0, 0});
  CHECK(mixed.place(6) == LayerPlace{0, 1, 2});
  CHECK(mixed.place(16) == LayerPlace{0, 4, 2});
  CHECK(mixed.place(17) == LayerPlace{1, 0, 2});
  CHECK(mixed.blocks_for(100) == 4 * 6);
  CHECK(mixed.blocks_for(32'000) == 1000 + 5 * (18 + 1));  // 512 + 63 = 575 is 18 stripes
  CHECK(mixed.first_visible_stripe(1, 5000) == 0);
  CHECK(mixed.first_visible_stripe(0, 511) == 0);
  CHECK(mixed.first_visible_stripe(0, 542) == 0);  // sees 31 .. 542
  CHECK(mixed.first_visible_stripe(0, 543) == 1);
  mixed.group_of_layer.clear();
  CHECK(mixed.place(14) == LayerPlace{0, 4, 2});
  CHECK(mixed.place(15) == LayerPlace{1, 0, 0});
}

TEST_CASE("KvGeometry: tokens round up to blocks and budgets down", "[kvcache]") {
  const KvGeometry geometry = smollm2(KvType::kF16, 32);
  CHECK(geometry.blocks_for(0) == 0);
  CHECK(geometry.blocks_for(1) == 1);
  CHECK(geometry.blocks_for(32) == 1);
  CHECK(geometry.blocks_for(33) == 2);
  CHECK(geometry.blocks_in(0) == 0);
  CHECK(geometry.blocks_in(23'040 * 32 - 1) == 0);
  CHECK(geometry.blocks_in(23'040 * 32) == 1);
  CHECK(geometry.blocks_in(std::uint64_t{1} << 30) == 1456);  // 1 GiB / 737 280
}

TEST_CASE("KvGeometry: a windowed group stops growing at the window, the chunk and a block",
          "[kvcache]") {
  KvGeometry geometry = smollm2(KvType::kF16, 16);
  geometry.largest_chunk = 64;
  CHECK(geometry.stripes_for_group(0, 1000) == 63);
  geometry.groups[0].window_tokens = 128;
  CHECK(geometry.stripes_for_group(0, 100) == 7);    // shorter than the window
  CHECK(geometry.stripes_for_group(0, 1000) == 13);  // 128 + 63 = 191 is 12 stripes, and 1
  CHECK(geometry.stripes_for_group(0, 100'000) == 13);
  geometry.largest_chunk = 1;
  CHECK(geometry.stripes_for_group(0, 1000) == 9);  // 128 + 0 is 8 stripes, and 1
}

TEST_CASE("KvGeometry: the last generated token takes no slot", "[kvcache]") {
  CHECK(max_cached_tokens(10, 1) == 10);
  CHECK(max_cached_tokens(10, 5) == 14);
}

TEST_CASE("KvGeometry: the longest prompt is the last that fits", "[kvcache]") {
  const KvGeometry geometry = smollm2(KvType::kF16, 16);
  for (const std::uint64_t max_tokens : {1U, 2U, 16U, 17U, 159U, 160U}) {
    const std::uint64_t longest = longest_prompt_tokens(geometry, 10, max_tokens);
    CAPTURE(max_tokens, longest);
    CHECK(geometry.blocks_for(max_cached_tokens(longest, max_tokens)) <= 10);
    CHECK(geometry.blocks_for(max_cached_tokens(longest + 1, max_tokens)) > 10);
  }
  CHECK(longest_prompt_tokens(geometry, 10, 161) == 0);
  CHECK(longest_prompt_tokens(geometry, 10, 1000) == 0);
}

TEST_CASE("KvType: names go both ways", "[kvcache]") {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16}) {
    CHECK(kv_type_from_name(kv_type_name(type)) == type);
  }
  CHECK(kv_type_name(KvType::kBf16) == "bf16");
  CHECK_FALSE(kv_type_from_name("F16").has_value());
  CHECK_FALSE(kv_type_from_name("").has_value());
  CHECK(element_bytes(KvType::kF32) == 4);
  CHECK(element_bytes(KvType::kBf16) == 2);
}

}  // namespace kvasir::kvcache
