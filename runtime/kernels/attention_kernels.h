// Attention over stored K and V tiles, one struct of function pointers for each instruction set.
// Which rows go together, and who computes which range, is attention_step's business.
//
// The arithmetic: a row (one query token and one query head) that sees positions f..q works through
// the absolute ranges of kAttentionRange positions that hold any of them: from f / kAttentionRange
// to q / kAttentionRange, rounded down. In each it starts afresh: scores are one FMA chain over the
// head's dimensions; the maximum m of them times `scale`, the weights exp(scale * score - m) (one
// FMA) and their sum are over the positions f..q of the range only (others are selected out, never
// multiplied); the weighted sum of V is one chain over the positions in ascending order.
// Ranges merge in ascending order. All of it depends on the row's own f and q alone, so the bits
// are the same in any company, and whether one task does all ranges or several do some each.
// Ranges that nobody sees are not read, nor are tiles before the first that anybody sees.
// Source: online softmax, Milakov and Gimelshein 2018, algorithm 3.
//
// Files of one set include only intrinsics and this header; so it has plain structs only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir::runtime {

/// Element type of the KV arena as kernels see it (same order as kvcache::KvType).
enum class KvElement : std::uint8_t { kF32, kF16, kBf16 };

inline constexpr std::uint32_t kAttentionRange = 256;

struct AttentionRow {
  const float* q = nullptr;          // [head_dim]
  std::uint32_t first_position = 0;  // sees positions first_position..position
  std::uint32_t position = 0;
  float* out = nullptr;  // [head_dim]; not used when `partials` is set
  /// Null: the task holds all ranges of the row and writes `out`. Else the results of the ranges
  /// that the row sees, AttentionKernels::partial_floats(head_dim) each, go here in their order,
  /// that of its first one first, to be merged later.
  float* partials = nullptr;
};

/// Rows that read the same K and V of one KV head: consecutive queries of one sequence, its query
/// heads of the group, or sequences that share these blocks.
struct AttentionTask {
  KvElement element = KvElement::kF32;
  std::uint32_t block_tokens = 0;  // 16, 32 or 64
  std::uint32_t head_dim = 0;      // any; tails are masked
  std::uint32_t first_range = 0;   // ranges [first_range, end_range) of the rows that have them
  std::uint32_t end_range = 0;
  /// Tiles of the blocks from position first_range * kAttentionRange on, up to the last that a row
  /// sees in these ranges: K [head_dim][block_tokens], V [block_tokens][head_dim]. Those
  /// before the first that a row sees may be null.
  const std::byte* const* k_tiles = nullptr;
  const std::byte* const* v_tiles = nullptr;
  /// K tiles that the thread reads after this task, or null: fetched before it ends.
  const std::byte* next_tiles[2] = {nullptr, nullptr};
  /// [num_rows]; in each range, no row begins or ends before the row ahead of it does: by ascending
  /// first and last position, or in any order where all of them see the ranges whole.
  const AttentionRow* rows = nullptr;
  std::uint32_t num_rows = 0;  // at most kMaxAttentionRows
  float scale = 0.0F;          // multiplies the scores
  float* scratch = nullptr;    // scratch_floats(head_dim), 64-byte aligned
};
inline constexpr std::uint32_t kMaxAttentionRows = 64;

struct AttentionKernels {
  std::size_t (*scratch_floats)(std::uint32_t head_dim) = nullptr;
  void (*attend)(const AttentionTask& task) = nullptr;
  /// Floats of the result of one range of one row, a multiple of 16.
  std::size_t (*partial_floats)(std::uint32_t head_dim) = nullptr;
  /// Merges the num_ranges partial results of a row, in ascending order, into out [head_dim]: the
  /// bits that one task over all of them writes.
  void (*merge)(const float* partials, std::uint32_t num_ranges, std::uint32_t head_dim,
                float* out) = nullptr;
};

}  // namespace kvasir::runtime
