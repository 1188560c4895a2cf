// One anonymous mapping, laid out [block][layer][K, V][kv_head][tile]: a block is one contiguous
// stretch, so that memory is touched in step with the blocks in use, and one layer's K (or V) of a
// block is contiguous too.
#include "kvcache/kv_storage.h"

#include "core/check.h"

#include <cstring>

namespace kvasir::kvcache {

KvStorage::KvStorage(const KvGeometry& geometry, std::uint32_t num_blocks)
    : geometry_(geometry), num_blocks_(num_blocks) {
  // A model with several groups needs its tiles addressed by (group, layer in group) and its pages
  // shared between groups of other sizes. Until then the model loader refuses such models, and this
  // holds it to that.
  KVASIR_CHECK(geometry.groups.size() == 1, geometry.groups.size() << " layer groups");
  KVASIR_CHECK(num_blocks >= 1);
  KVASIR_CHECK(geometry.bytes_per_block() > 0);
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

std::size_t KvStorage::tile_offset(Half half, std::uint32_t layer, BlockId block,
                                   std::uint32_t kv_head) const {
  const KvLayerGroup& group = geometry_.groups[0];
  KVASIR_DCHECK(layer < group.num_layers, layer << " of " << group.num_layers);
  KVASIR_DCHECK(value_of(block) < num_blocks_, value_of(block) << " of " << num_blocks_);
  KVASIR_DCHECK(kv_head < group.num_kv_heads, kv_head << " of " << group.num_kv_heads);
  const std::size_t layer_index = std::size_t{value_of(block)} * group.num_layers + layer;
  const std::size_t half_index = layer_index * 2 + (half == Half::kV ? 1 : 0);
  return (half_index * group.num_kv_heads + kv_head) * tile_bytes_;
}

}  // namespace kvasir::kvcache
