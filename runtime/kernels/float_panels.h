// Panels of float weights: thirty-two rows of a matrix lie together, column by column, so that a
// kernel reads one stream and keeps one output row in each lane. F32, F16 and BF16 as in the file;
// panels.h has the same for quantised types.
#pragma once

#include "runtime/model/ggml_type.h"

#include <cstddef>
#include <cstdint>

namespace kvasir::runtime {

[[nodiscard]] bool has_float_panels(GgmlType type);
/// Bytes of one panel of rows of k elements, a multiple of 64.
[[nodiscard]] std::size_t float_panel_bytes(GgmlType type, std::uint32_t k);
/// Packs num_rows (at most 32) rows, the first at `rows`, into one panel. Rows that are missing
/// become zero rows. Threads: any; no shared state.
void pack_float_panel(GgmlType type, const std::byte* rows, std::size_t row_bytes,
                      std::uint32_t num_rows, std::uint32_t k, std::byte* panel);
/// Row `row` (0..31) of a panel as it was in the file: k elements.
void unpack_float_row(GgmlType type, const std::byte* panel, std::uint32_t row, std::uint32_t k,
                      std::byte* out);

}  // namespace kvasir::runtime
