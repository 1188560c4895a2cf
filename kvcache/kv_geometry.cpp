// Sums over layer groups and roundings; see the header for the rules.
#include "kvcache/kv_geometry.h"

#include "core/check.h"

#include <algorithm>

namespace kvasir::kvcache {
namespace {

constexpr std::uint64_t div_ceil(std::uint64_t count, std::uint64_t per) {
  return count / per + (count % per != 0 ? 1 : 0);
}

/// K and V tiles of a group in one block.
std::uint64_t tiles_of(const KvLayerGroup& group) {
  return 2ULL * group.num_layers * group.num_kv_heads;
}

}  // namespace

std::string_view kv_type_name(KvType type) {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kF16:
      return "f16";
    case KvType::kBf16:
      return "bf16";
  }
  return "unknown";
}

std::optional<KvType> kv_type_from_name(std::string_view name) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16}) {
    if (name == kv_type_name(type)) return type;
  }
  return std::nullopt;
}

std::uint64_t KvGeometry::bytes_per_token() const {
  std::uint64_t bytes = 0;
  for (const KvLayerGroup& group : groups) {
    bytes += tiles_of(group) * group.head_dim * element_bytes(type);
  }
  return bytes;
}

std::uint64_t KvGeometry::tile_bytes(std::size_t group) const {
  KVASIR_CHECK(group < groups.size(), group << " of " << groups.size());
  const std::uint64_t bytes =
      std::uint64_t{groups[group].head_dim} * block_tokens * element_bytes(type);
  return div_ceil(bytes, kTileAlignment) * kTileAlignment;
}

std::uint64_t KvGeometry::bytes_per_block() const {
  std::uint64_t bytes = 0;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    bytes += tiles_of(groups[group]) * tile_bytes(group);
  }
  return bytes;
}

std::uint64_t KvGeometry::blocks_for(std::uint64_t tokens) const {
  return div_ceil(tokens, block_tokens);
}

std::uint64_t KvGeometry::blocks_for_group(std::size_t group, std::uint64_t tokens,
                                           std::uint32_t largest_chunk) const {
  KVASIR_CHECK(group < groups.size(), group << " of " << groups.size());
  KVASIR_CHECK(largest_chunk >= 1);
  const std::uint64_t window = groups[group].window_tokens;
  if (window == 0) return blocks_for(tokens);
  // The first query of a chunk still sees W - 1 positions before it, and the chunk itself is stored
  // whole. The live stretch may begin in the middle of a block: one block more.
  return std::min(blocks_for(tokens), blocks_for(window + largest_chunk - 1) + 1);
}

std::uint64_t KvGeometry::blocks_in(std::uint64_t budget_bytes) const {
  const std::uint64_t block = bytes_per_block();
  KVASIR_CHECK(block > 0, "a geometry without layers");
  return budget_bytes / block;
}

std::uint64_t longest_prompt_tokens(const KvGeometry& geometry, std::uint64_t num_blocks,
                                    std::uint64_t max_tokens) {
  KVASIR_CHECK(max_tokens >= 1);
  const std::uint64_t slots = num_blocks * geometry.block_tokens;
  return slots >= max_tokens ? slots - (max_tokens - 1) : 0;
}

}  // namespace kvasir::kvcache
