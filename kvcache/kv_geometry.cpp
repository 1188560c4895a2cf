// Sums over layer groups and roundings; see the header for the rules.
#include "kvcache/kv_geometry.h"

#include "core/check.h"

#include <algorithm>
#include <limits>
#include <numeric>

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

std::uint32_t KvGeometry::num_layers() const {
  std::uint32_t layers = 0;
  for (const KvLayerGroup& group : groups) layers += group.num_layers;
  return layers;
}

LayerPlace KvGeometry::place(std::uint32_t layer) const {
  KVASIR_CHECK(layer < num_layers(), layer << " of " << num_layers());
  LayerPlace place;
  std::uint32_t index = 0;  // among the layers of its group
  if (group_of_layer.empty()) {
    index = layer;
    while (index >= groups[place.group].num_layers) index -= groups[place.group++].num_layers;
  } else {
    KVASIR_CHECK(group_of_layer.size() == num_layers());
    place.group = group_of_layer[layer];
    index = static_cast<std::uint32_t>(
        std::count(group_of_layer.begin(), group_of_layer.begin() + layer, place.group));
  }
  place.block_in_stripe = index / layers_per_block();
  place.layer_in_block = index % layers_per_block();
  return place;
}

std::uint32_t KvGeometry::layers_per_block() const {
  std::uint32_t layers = 0;
  for (const KvLayerGroup& group : groups) layers = std::gcd(layers, group.num_layers);
  KVASIR_CHECK(layers > 0, "a geometry without layers");
  return layers;
}

std::uint32_t KvGeometry::blocks_per_stripe(std::size_t group) const {
  KVASIR_CHECK(group < groups.size(), group << " of " << groups.size());
  return groups[group].num_layers / layers_per_block();
}

std::uint32_t KvGeometry::blocks_per_stripes() const { return num_layers() / layers_per_block(); }

bool KvGeometry::has_windows() const {
  return std::ranges::any_of(groups, [](const KvLayerGroup& g) { return g.window_tokens > 0; });
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
  return 2ULL * layers_per_block() * groups[0].num_kv_heads * tile_bytes(0);
}

std::uint64_t KvGeometry::stripes_for(std::uint64_t tokens) const {
  return div_ceil(tokens, block_tokens);
}

std::uint64_t KvGeometry::stripes_for_group(std::size_t group, std::uint64_t tokens,
                                            std::uint32_t chunk_tokens) const {
  KVASIR_CHECK(group < groups.size(), group << " of " << groups.size());
  KVASIR_CHECK(chunk_tokens >= 1);
  const std::uint64_t window = groups[group].window_tokens;
  if (window == 0) return stripes_for(tokens);
  // The first query of a chunk still sees W - 1 positions before it, and the chunk itself is stored
  // whole. The live stretch may begin in the middle of a stripe: one stripe more.
  return std::min(stripes_for(tokens), stripes_for(window + chunk_tokens - 1) + 1);
}

std::uint64_t KvGeometry::blocks_for(std::uint64_t tokens, std::uint32_t chunk_tokens) const {
  std::uint64_t blocks = 0;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    blocks += stripes_for_group(group, tokens, chunk_tokens) * blocks_per_stripe(group);
  }
  return blocks;
}

std::uint32_t KvGeometry::first_visible_stripe(std::size_t group, std::uint32_t position) const {
  const std::uint32_t window = groups[group].window_tokens;
  if (window == 0 || position < window) return 0;
  return (position + 1 - window) / block_tokens;
}

std::uint64_t KvGeometry::blocks_in(std::uint64_t budget_bytes) const {
  const std::uint64_t block = bytes_per_block();
  KVASIR_CHECK(block > 0, "a geometry without layers");
  return budget_bytes / block;
}

std::uint64_t longest_prompt_tokens(const KvGeometry& geometry, std::uint64_t num_blocks,
                                    std::uint64_t max_tokens) {
  KVASIR_CHECK(max_tokens >= 1);
  // blocks_for never falls as tokens rise. Where every group has a window it stops rising, and any
  // prompt fits: then the bound is what a sequence's token count can say.
  std::uint64_t fits = 0;
  std::uint64_t beyond = std::uint64_t{std::numeric_limits<std::uint32_t>::max()};
  while (fits + 1 < beyond) {
    const std::uint64_t middle = fits + (beyond - fits) / 2;
    (geometry.blocks_for(middle) <= num_blocks ? fits : beyond) = middle;
  }
  return fits >= max_tokens ? fits - (max_tokens - 1) : 0;
}

}  // namespace kvasir::kvcache
