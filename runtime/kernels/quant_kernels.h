// Products of quantised weights and int8 activations, one struct of function pointers for each
// instruction set. Weights come in panels of 32 rows (panels.h); activations are quantised once per
// row and used by every matrix that reads them.
//
// The arithmetic, the same on every set: activations are rounded to int8 in blocks of 32 (scale =
// largest magnitude / 127, nearest even, never -128); integer dot products per block (per 16 for
// the types whose scales span 16) are exact; each output then keeps ONE float chain over its blocks
// in ascending k (FMA in the SIMD sets, multiply then add in scalar). So a row's outputs have the
// same bits among any number of rows, in any tile shape and in any range of panels.
//
// Files of one set include only intrinsics and this header; so it has plain structs only.
#pragma once

#include "runtime/model/ggml_type.h"

#include <cstddef>
#include <cstdint>

namespace kvasir::runtime {

inline constexpr std::uint32_t kPanelRows = 32;
inline constexpr std::uint32_t kQuantBlock = 32;  // activations that share a scale

/// y[m][r] = dot(x[m], weights row r) (+ bias[r]) for the rows r < num_rows of the panels
/// [panel_begin, panel_end); with `accumulate` that is added to what y holds.
struct QuantMatmulTask {
  GgmlType type = GgmlType::kQ4_0;    // one that has_panels()
  const std::byte* panels = nullptr;  // panel p at panels + p * panel_bytes(type, k)
  std::uint32_t k = 0;                // columns; a multiple of the type's block
  std::uint32_t num_rows = 0;  // of the matrix: rows of the last panel past it are not written
  std::uint32_t panel_begin = 0, panel_end = 0;
  const std::byte* x = nullptr;  // [num_x] quantised rows of k, x_stride bytes apart
  std::size_t x_stride = 0;
  std::uint32_t num_x = 0;
  float* y = nullptr;  // y[m * y_stride + r - y_first_row]
  std::size_t y_stride = 0;
  std::uint32_t y_first_row = 0;
  const float* bias = nullptr;  // null, or [num_rows]
  bool accumulate = false;
  const std::byte* next = nullptr;  // a panel that is read after this task: prefetched, or null
  std::byte* scratch = nullptr;     // QuantKernels::scratch_bytes(k), 64-byte aligned, per thread
};

struct QuantKernels {
  const char* name = "";  // what does the dot products: "scalar", "avx2", "avxvnni", "avx512vnni"
  /// Bytes of one quantised row of k elements, a multiple of 64: its int8 values, scales and sums.
  std::size_t (*quantized_row_bytes)(std::uint32_t k) = nullptr;
  /// Quantises x [k] (k a multiple of 32) to `row`, 64-byte aligned. A block that holds a value
  /// that is not finite gets the scale NaN, so that it shows in every output.
  void (*quantize_row)(const float* x, std::uint32_t k, std::byte* row) = nullptr;
  /// Quantises silu(gate[m][i]) * up[m][i], i in [0, 32), as block `block` of rows of k elements:
  /// the same bits as silu_multiply followed by quantize_row. gate and up [num_x, 32], `stride`
  /// floats apart; rows `rows_stride` bytes apart.
  void (*silu_multiply_quantize)(const float* gate, const float* up, std::size_t stride,
                                 std::uint32_t num_x, std::byte* rows, std::size_t rows_stride,
                                 std::uint32_t k, std::uint32_t block) = nullptr;
  /// The same with gelu_multiply.
  void (*gelu_multiply_quantize)(const float* gate, const float* up, std::size_t stride,
                                 std::uint32_t num_x, std::byte* rows, std::size_t rows_stride,
                                 std::uint32_t k, std::uint32_t block) = nullptr;
  std::size_t (*scratch_bytes)(std::uint32_t k) = nullptr;
  void (*matmul)(const QuantMatmulTask& task) = nullptr;
};

}  // namespace kvasir::runtime
