// The KV arena: the only memory that keys and values live in, sized once at startup to the byte
// budget. Which block belongs to whom is kv_cache_manager's business; only the runtime reads and
// writes here.
#pragma once

#include "core/ids.h"
#include "core/page_buffer.h"
#include "kvcache/kv_geometry.h"

#include <cstddef>
#include <cstdint>

namespace kvasir::kvcache {

/// Layout per layer of a block: K as [kv_head][head_dim][slot], so that lanes are positions for
/// q.k; V as [kv_head][slot][head_dim], so that lanes are dimensions for p.v. Elements are
/// KvGeometry::type.
class KvStorage {
 public:
  /// Reserves num_blocks blocks with huge pages where the system grants them; pages are touched on
  /// first use. Every tile starts on a 64-byte boundary. Throws std::bad_alloc when the address
  /// space is refused.
  KvStorage(const KvGeometry& geometry, std::uint32_t num_blocks);
  KvStorage(const KvStorage&) = delete;
  KvStorage& operator=(const KvStorage&) = delete;

  [[nodiscard]] const KvGeometry& geometry() const { return geometry_; }
  [[nodiscard]] std::uint32_t num_blocks() const { return num_blocks_; }
  [[nodiscard]] std::size_t size_bytes() const;

  /// K tile of one layer, counted within the block (see KvGeometry::place), and KV head:
  /// [head_dim][block_tokens] elements.
  [[nodiscard]] std::byte* k_tile(std::uint32_t layer, BlockId block, std::uint32_t kv_head);
  /// V tile of the same: [block_tokens][head_dim] elements.
  [[nodiscard]] std::byte* v_tile(std::uint32_t layer, BlockId block, std::uint32_t kv_head);
  [[nodiscard]] const std::byte* k_tile(std::uint32_t layer, BlockId block,
                                        std::uint32_t kv_head) const;
  [[nodiscard]] const std::byte* v_tile(std::uint32_t layer, BlockId block,
                                        std::uint32_t kv_head) const;

  /// Makes all slots of `destination` those of `source`, on all their layers. Whole blocks, because
  /// a block is one stretch of memory in every element type; slots past a sequence's tokens are
  /// never read, whatever they hold.
  void copy_block(BlockId source, BlockId destination);
  /// Whether the first `num_slots` slots of two blocks hold the same bytes, on all their layers.
  [[nodiscard]] bool same_slots(BlockId a, BlockId b, std::uint32_t num_slots) const;

 private:
  enum class Half { kK, kV };
  [[nodiscard]] std::size_t tile_offset(Half half, std::uint32_t layer, BlockId block,
                                        std::uint32_t kv_head) const;  // in bytes from the start

  KvGeometry geometry_;
  std::uint32_t num_blocks_ = 0;
  std::uint32_t layers_per_block_ = 0;
  std::size_t tile_bytes_ = 0;
  PageBuffer pages_;
};

}  // namespace kvasir::kvcache
