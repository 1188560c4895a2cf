#include "runtime/kernels/float_panels.h"

#include "core/check.h"
#include "runtime/kernels/quant_kernels.h"

#include <cstring>

namespace kvasir::runtime {
namespace {

/// Columns that are moved together, so that a cache line of every row is used up at once.
constexpr std::uint32_t kColumns = 16;

template <typename Element>
void pack(const std::byte* rows, std::size_t row_bytes, std::uint32_t num_rows, std::uint32_t k,
          std::byte* panel) {
  auto* out = reinterpret_cast<Element*>(panel);  // [k][32]
  if (num_rows < kPanelRows) std::memset(panel, 0, std::size_t{k} * kPanelRows * sizeof(Element));
  for (std::uint32_t begin = 0; begin < k; begin += kColumns) {
    const std::uint32_t columns = k - begin < kColumns ? k - begin : kColumns;
    for (std::uint32_t row = 0; row < num_rows; ++row) {
      Element values[kColumns];
      std::memcpy(values, rows + row * row_bytes + begin * sizeof(Element),
                  columns * sizeof(Element));
      for (std::uint32_t i = 0; i < columns; ++i) {
        out[std::size_t{begin + i} * kPanelRows + row] = values[i];
      }
    }
  }
}

template <typename Element>
void unpack(const std::byte* panel, std::uint32_t row, std::uint32_t k, std::byte* out) {
  const auto* elements = reinterpret_cast<const Element*>(panel);
  for (std::uint32_t i = 0; i < k; ++i) {
    std::memcpy(out + i * sizeof(Element), &elements[std::size_t{i} * kPanelRows + row],
                sizeof(Element));
  }
}

}  // namespace

bool has_float_panels(GgmlType type) {
  return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16;
}

std::size_t float_panel_bytes(GgmlType type, std::uint32_t k) {
  KVASIR_CHECK(has_float_panels(type));
  return std::size_t{k} * kPanelRows * type_info(type).block_bytes;
}

void pack_float_panel(GgmlType type, const std::byte* rows, std::size_t row_bytes,
                      std::uint32_t num_rows, std::uint32_t k, std::byte* panel) {
  KVASIR_CHECK(num_rows <= kPanelRows);
  if (type == GgmlType::kF32) return pack<std::uint32_t>(rows, row_bytes, num_rows, k, panel);
  KVASIR_CHECK(has_float_panels(type));
  pack<std::uint16_t>(rows, row_bytes, num_rows, k, panel);
}

void unpack_float_row(GgmlType type, const std::byte* panel, std::uint32_t row, std::uint32_t k,
                      std::byte* out) {
  KVASIR_CHECK(row < kPanelRows);
  if (type == GgmlType::kF32) return unpack<std::uint32_t>(panel, row, k, out);
  KVASIR_CHECK(has_float_panels(type));
  unpack<std::uint16_t>(panel, row, k, out);
}

}  // namespace kvasir::runtime
