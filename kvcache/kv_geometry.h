// The arithmetic of KV bytes: the only home of 2 * layers * kv_heads * head_dim * element_bytes,
// and of how many tokens and blocks a request can come to need. Bytes count KV heads, never query
// heads. No memory is held here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace kvasir::kvcache {

enum class KvType : std::uint8_t { kF32, kF16, kBf16 };

[[nodiscard]] std::string_view kv_type_name(KvType type);  // "f32", "f16", "bf16"
[[nodiscard]] std::optional<KvType> kv_type_from_name(std::string_view name);
[[nodiscard]] constexpr std::uint32_t element_bytes(KvType type) {
  return type == KvType::kF32 ? 4U : 2U;
}

/// The block size that is served; no option (docs/adr/0004).
inline constexpr std::uint32_t kBlockTokens = 32;

/// Layers that attend alike. Windowed layers see `window_tokens` positions, the current one
/// included; 0 means all.
struct KvLayerGroup {
  std::uint32_t num_layers = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t window_tokens = 0;
  friend bool operator==(const KvLayerGroup&, const KvLayerGroup&) = default;
};

/// Every tile of the arena starts on a cache line.
inline constexpr std::uint64_t kTileAlignment = 64;

/// Groups that a model may have: kinds of layers that differ in their window.
inline constexpr std::size_t kMaxLayerGroups = 4;

/// Where one layer of the model keeps its keys and values.
struct LayerPlace {
  std::uint32_t group = 0;
  std::uint32_t block_in_stripe = 0;
  std::uint32_t layer_in_block = 0;
  friend bool operator==(const LayerPlace&, const LayerPlace&) = default;
};

/// Shape of the KV cache of one model. For 30 layers, 3 KV heads, head_dim 64 and f16: 23 040 bytes
/// per token.
///
/// One pool of equal blocks serves all groups. A block holds block_tokens tokens of
/// layers_per_block() layers of one group; what a group keeps of block_tokens consecutive tokens is
/// a *stripe*: blocks_per_stripe(group) blocks, not necessarily side by side. Where all layers are
/// alike a stripe is one block with all layers in it. Five windowed layers for each full one, three
/// of these: 3 layers in a block, 5 blocks in a stripe of the windowed group and 1 in one of the
/// full group.
struct KvGeometry {
  std::vector<KvLayerGroup> groups;  // equal num_kv_heads and head_dim; at most kMaxLayerGroups
  KvType type = KvType::kF16;
  std::uint32_t block_tokens = kBlockTokens;  // slots of a block: 16, 32 or 64; one attention tile
  /// The most tokens of one sequence that a step computes: a windowed group holds them beside its
  /// window.
  std::uint32_t largest_chunk = 512;
  /// [layers of the model]: the group of each. Empty: the groups' layers one after another.
  std::vector<std::uint8_t> group_of_layer = {};

  [[nodiscard]] std::uint32_t num_layers() const;
  /// Group of a layer, and its place among the group's layers, which keep their order.
  [[nodiscard]] LayerPlace place(std::uint32_t layer) const;
  /// The greatest number of layers that divides every group's.
  [[nodiscard]] std::uint32_t layers_per_block() const;
  [[nodiscard]] std::uint32_t blocks_per_stripe(std::size_t group) const;
  /// Blocks that one stripe of every group takes together: by so many a sequence grows for
  /// block_tokens tokens.
  [[nodiscard]] std::uint32_t blocks_per_stripes() const;
  [[nodiscard]] bool has_windows() const;

  /// 2 * layers * kv_heads * head_dim * element_bytes, summed over all groups: what the next token
  /// costs as long as no window is full.
  [[nodiscard]] std::uint64_t bytes_per_token() const;
  /// Bytes of one K or V tile of a group: [head_dim][block_tokens] elements, rounded up to
  /// kTileAlignment.
  [[nodiscard]] std::uint64_t tile_bytes(std::size_t group) const;
  /// Bytes of one block, as the arena lays it out: for a single group bytes_per_token() *
  /// block_tokens, plus the tile padding, which is none for every even head_dim.
  [[nodiscard]] std::uint64_t bytes_per_block() const;
  /// Stripes of a group without a window that hold `tokens` tokens; rounds up.
  [[nodiscard]] std::uint64_t stripes_for(std::uint64_t tokens) const;
  /// Stripes that one group holds at most while it computes `tokens` tokens: a window stops growing
  /// at W + largest_chunk - 1 tokens, rounded up, plus one stripe.
  [[nodiscard]] std::uint64_t stripes_for_group(std::size_t group, std::uint64_t tokens) const {
    return stripes_for_group(group, tokens, largest_chunk);
  }
  /// The same where no chunk is longer than `chunk_tokens`: 1 for one that only decodes.
  [[nodiscard]] std::uint64_t stripes_for_group(std::size_t group, std::uint64_t tokens,
                                                std::uint32_t chunk_tokens) const;
  /// Blocks over all groups that a sequence holds at most while it computes `tokens` tokens.
  [[nodiscard]] std::uint64_t blocks_for(std::uint64_t tokens) const {
    return blocks_for(tokens, largest_chunk);
  }
  [[nodiscard]] std::uint64_t blocks_for(std::uint64_t tokens, std::uint32_t chunk_tokens) const;
  /// The first stripe of a group that a query at `position` reads; those before it are behind the
  /// window.
  [[nodiscard]] std::uint32_t first_visible_stripe(std::size_t group, std::uint32_t position) const;
  /// Whole blocks in a budget; rounds down.
  [[nodiscard]] std::uint64_t blocks_in(std::uint64_t budget_bytes) const;
  friend bool operator==(const KvGeometry&, const KvGeometry&) = default;
};

/// Tokens that a sequence has in the cache at most: prompt + max_tokens - 1, because the last
/// generated token is never computed. The scheduler judges "can never fit" by it and the server
/// refuses by it. Requires max_tokens >= 1.
[[nodiscard]] constexpr std::uint64_t max_cached_tokens(std::uint64_t prompt_tokens,
                                                        std::uint64_t max_tokens) {
  return prompt_tokens + max_tokens - 1;
}

/// The longest prompt that fits `num_blocks` blocks and leaves room for `max_tokens` generated
/// tokens; 0 for none.
[[nodiscard]] std::uint64_t longest_prompt_tokens(const KvGeometry& geometry,
                                                  std::uint64_t num_blocks,
                                                  std::uint64_t max_tokens);

}  // namespace kvasir::kvcache
