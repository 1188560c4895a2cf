// One anonymous mapping, laid out [block][layer in block][K, V][kv_head][tile]: a block is one
// contiguous stretch, so that memory is touched in step with the blocks in use, and one layer's K
// (or V) of a block is contiguous too.
#include "kvcache/kv_storage.h"

#include "core/check.h"

#include <cstring>

namespace kvasir::kvcache {

KvStorage::KvStorage(const KvGeometry& geometry, std::uint32_t num_blocks)
    : geometry_(geometry), num_blocks_(num_blocks) {
  KVASIR_CHECK(!geometry.groups.empty() && geometry.groups.size() <= kMaxLayerGroups,
               geometry.groups.size() << " layer groups");
  // Blocks of one size serve all groups.
  for (const KvLayerGroup& group : geometry.groups) {
    KVASIR_CHECK(group.num_kv_heads == geometry.groups[0].num_kv_heads &&
                     group.head_dim == geometry.groups[0].head_dim,
                 "layer groups of other head sizes");
  }
  KVASIR_CHECK(num_blocks >= 1);
  KVASIR_CHECK(geometry.bytes_per_block() > 0);
  layers_per_block_ = geometry.layers_per_block();
  tile_bytes_ = geometry.tile_bytes(0);
  pages_ = PageBuffer(size_bytes());
}

std::size_t KvStorage::size_bytes() const { return geometry_.bytes_per_block() * num_blocks_; }

std::byte* KvStorage::k_tile(std::uint32_t layer, BlockId block, std::uint32_t kv_head) {
  return pages_.data() + tile_offset(Half::kK, layer, block, kv_head);
}

std::byte* KvStorage::v_tile(std::uint32_t layer, BlockId block, std::uint32_t kv_head) {
  return pages_.data() + tile_offset(Half::kV, layer, block, kv_head);
}

const std::byte* KvStorage::k_tile(std::uint32_t layer, BlockId block,
                                   std::uint32_t kv_head) const {
  return pages_.data() + tile_offset(Half::kK, layer, block, kv_head);
}

const std::byte* KvStorage::v_tile(std::uint32_t layer, BlockId block,
                                   std::uint32_t kv_head) const {
  return pages_.data() + tile_offset(Half::kV, layer, block, kv_head);
}

void KvStorage::copy_block(BlockId source, BlockId destination) {
  KVASIR_CHECK(source != destination, "block " << value_of(source) << " onto itself");
  KVASIR_CHECK(value_of(source) < num_blocks_, value_of(source) << " of " << num_blocks_);
  KVASIR_CHECK(value_of(destination) < num_blocks_, value_of(destination) << " of " << num_blocks_);
  std::memcpy(k_tile(0, destination, 0), k_tile(0, source, 0), geometry_.bytes_per_block());
}

bool KvStorage::same_slots(BlockId a, BlockId b, std::uint32_t num_slots) const {
  const KvLayerGroup& group = geometry_.groups[0];
  const std::size_t element = element_bytes(geometry_.type);
  const std::size_t k_row = geometry_.block_tokens * element;  // of one dimension
  KVASIR_CHECK(num_slots <= geometry_.block_tokens);
  for (std::uint32_t layer = 0; layer < layers_per_block_; ++layer) {
    for (std::uint32_t head = 0; head < group.num_kv_heads; ++head) {
      const std::byte* k_a = k_tile(layer, a, head);
      const std::byte* k_b = k_tile(layer, b, head);
      for (std::uint32_t d = 0; d < group.head_dim; ++d) {
        if (std::memcmp(k_a + d * k_row, k_b + d * k_row, num_slots * element) != 0) return false;
      }
      if (std::memcmp(v_tile(layer, a, head), v_tile(layer, b, head),
                      std::size_t{num_slots} * group.head_dim * element) != 0) {
        return false;
      }
    }
  }
  return true;
}

std::size_t KvStorage::tile_offset(Half half, std::uint32_t layer, BlockId block,
                                   std::uint32_t kv_head) const {
  const KvLayerGroup& group = geometry_.groups[0];
  KVASIR_DCHECK(layer < layers_per_block_, layer << " of " << layers_per_block_);
  KVASIR_DCHECK(value_of(block) < num_blocks_, value_of(block) << " of " << num_blocks_);
  KVASIR_DCHECK(kv_head < group.num_kv_heads, kv_head << " of " << group.num_kv_heads);
  const std::size_t layer_index = std::size_t{value_of(block)} * layers_per_block_ + layer;
  const std::size_t half_index = layer_index * 2 + (half == Half::kV ? 1 : 0);
  return (half_index * group.num_kv_heads + kv_head) * tile_bytes_;
}

}  // namespace kvasir::kvcache
