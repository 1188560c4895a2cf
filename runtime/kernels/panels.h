// Panels: the layout of quantised weights in memory. Thirty-two rows of a matrix lie together,
// block of k by block of k, so that a kernel reads one stream and keeps one output row in each
// lane. The codes are those of the file, only their places change: nothing is rounded again.
#pragma once

#include "runtime/kernels/quant_kernels.h"
#include "runtime/model/ggml_type.h"

#include <cstddef>
#include <cstdint>

namespace kvasir::runtime {

/// Whether int8 kernels multiply by this type. The others (F32, F16, BF16) keep their rows.
[[nodiscard]] bool has_panels(GgmlType type);
/// Bytes of one panel of rows of k elements, a multiple of 64.
[[nodiscard]] std::size_t panel_bytes(GgmlType type, std::uint32_t k);
[[nodiscard]] constexpr std::uint32_t num_panels(std::uint32_t rows) {
  return (rows + kPanelRows - 1) / kPanelRows;
}

/// Packs num_rows (at most 32) rows as stored in a GGUF file, the first at `rows`, into one panel
/// (64-byte aligned). Rows that are missing become zero rows.
/// Threads: any; no shared state.
void pack_panel(GgmlType type, const std::byte* rows, std::size_t row_bytes, std::uint32_t num_rows,
                std::uint32_t k, std::byte* panel);

/// Row `row` (0..31) of a panel as floats [k]: bit for bit what dequantising the file's row gives.
void unpack_row(GgmlType type, const std::byte* panel, std::uint32_t row, std::uint32_t k,
                float* out);

}  // namespace kvasir::runtime
