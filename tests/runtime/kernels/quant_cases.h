// What the tests of panels and of int8 products share: random weights of every type, packed, and
// quantised activations.
#pragma once

#include "runtime/kernels/panels.h"
#include "tests/runtime/kernels/kernel_cases.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>

namespace kvasir::runtime::testing {

inline constexpr GgmlType kPanelTypes[] = {GgmlType::kQ4_0, GgmlType::kQ4_1,   GgmlType::kQ5_0,
                                           GgmlType::kQ5_1, GgmlType::kQ8_0,   GgmlType::kQ2_K,
                                           GgmlType::kQ3_K, GgmlType::kQ4_K,   GgmlType::kQ5_K,
                                           GgmlType::kQ6_K, GgmlType::kIQ4_NL, GgmlType::kIQ4_XS};

/// Bytes at a multiple of 64, with 64 canary bytes on either side that check() looks at.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t size)
      : size_(size), memory_(new(kAlignment) std::byte[size + 2 * kGuard]) {
    std::memset(memory_.get(), kCanary, size + 2 * kGuard);
  }
  [[nodiscard]] std::byte* data() const { return memory_.get() + kGuard; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool guards_hold() const {
    const auto is_canary = [](std::byte b) { return b == std::byte{kCanary}; };
    return std::all_of(memory_.get(), data(), is_canary) &&
           std::all_of(data() + size_, data() + size_ + kGuard, is_canary);
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr unsigned char kCanary = 0xC7;
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(std::byte* p) const { operator delete[](p, kAlignment); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte[], Delete> memory_;
};

/// Offsets of the f16 numbers in a block of a file.
inline std::vector<std::size_t> panel_f16_offsets(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1:
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K:
      return {0, 2};
    case GgmlType::kQ2_K:
      return {80, 82};
    case GgmlType::kQ3_K:
      return {108};
    case GgmlType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

inline void put_half(std::byte* p, std::uint32_t bits) {
  p[0] = static_cast<std::byte>(bits & 0xFFU);
  p[1] = static_cast<std::byte>(bits >> 8);
}

/// A matrix as in a file, as floats, and in panels. Codes and small scales are random bits; the f16
/// numbers have magnitudes of 2^-8 to 2^-5 and either sign.
struct PanelWeights {
  PanelWeights(GgmlType a_type, std::uint32_t a_rows, std::uint32_t a_k, std::uint32_t seed)
      : type(a_type), rows(a_rows), k(a_k) {
    Numbers numbers(seed);
    const GgmlTypeInfo& info = type_info(type);
    row_bytes = std::size_t{k} / info.block_elements * info.block_bytes;
    blocks.resize(rows * row_bytes);
    for (std::byte& b : blocks) b = static_cast<std::byte>(numbers.bits() >> 24);
    for (std::size_t at = 0; at < blocks.size(); at += info.block_bytes) {
      for (const std::size_t offset : panel_f16_offsets(type)) {
        const std::uint32_t random = numbers.bits();
        put_half(blocks.data() + at + offset, (random & 0x8000U) | (0x1C00U + (random & 0xFFFU)));
      }
    }
    pack();
  }

  /// After a change of `blocks`.
  void pack() {
    floats.resize(std::size_t{rows} * k);
    kernels_for(Isa::kScalar).dequantize(type, blocks.data(), floats.data(), floats.size());
    panels = std::make_unique<AlignedBytes>(num_panels(rows) * panel_bytes(type, k));
    for (std::uint32_t p = 0; p < num_panels(rows); ++p) {
      pack_panel(type, blocks.data() + p * kPanelRows * row_bytes, row_bytes,
                 std::min(kPanelRows, rows - p * kPanelRows), k,
                 panels->data() + p * panel_bytes(type, k));
    }
  }

  GgmlType type;
  std::uint32_t rows, k;
  std::size_t row_bytes = 0;
  std::vector<std::byte> blocks;
  std::vector<float> floats;  // [rows, k]
  std::unique_ptr<AlignedBytes> panels;
};

/// Rows of x as a set quantises them.
struct QuantRows {
  QuantRows(const KernelTable& table, const std::vector<float>& x, std::uint32_t k)
      : num_x(static_cast<std::uint32_t>(x.size() / k)),
        stride(table.quant->quantized_row_bytes(k)),
        bytes(num_x * stride) {
    for (std::uint32_t m = 0; m < num_x; ++m) {
      table.quant->quantize_row(x.data() + std::size_t{m} * k, k, row(m));
    }
  }
  [[nodiscard]] std::byte* row(std::uint32_t m) const { return bytes.data() + m * stride; }

  std::uint32_t num_x;
  std::size_t stride;
  AlignedBytes bytes;
};

/// What a record means, written down once more: 32 values, the scale, sums.
struct QuantRecord {
  std::int8_t values[32];
  float scale, scaled_sum, scaled_halves[2];
  std::int32_t minus_sum, minus_halves[2], unused;
};
static_assert(sizeof(QuantRecord) == 64);

inline QuantRecord record_at(const std::byte* row, std::uint32_t block) {
  QuantRecord record;
  std::memcpy(&record, row + std::size_t{block} * sizeof record, sizeof record);
  return record;
}

struct QuantMatmulOptions {
  std::uint32_t panel_begin = 0, panel_end = 0;  // end 0: all
  std::uint32_t first_x = 0, num_x = 0;          // num_x 0: all
  const float* bias = nullptr;
  bool accumulate = false;
  float fill = 0.0F;          // what y held
  std::uint32_t padding = 0;  // floats between the rows of y
  const std::byte* next = nullptr;
};

/// y of the range's rows only: [num_x][rows of the range + padding].
inline std::vector<float> quant_multiply(const KernelTable& table, const PanelWeights& w,
                                         const QuantRows& x,
                                         const QuantMatmulOptions& options = {}) {
  QuantMatmulTask task;
  task.type = w.type;
  task.panels = w.panels->data();
  task.k = w.k;
  task.num_rows = w.rows;
  task.panel_begin = options.panel_begin;
  task.panel_end = options.panel_end == 0 ? num_panels(w.rows) : options.panel_end;
  task.x = x.row(options.first_x);
  task.x_stride = x.stride;
  task.num_x = options.num_x == 0 ? x.num_x - options.first_x : options.num_x;
  task.y_first_row = task.panel_begin * kPanelRows;
  task.y_stride =
      std::min(task.panel_end * kPanelRows, w.rows) - task.y_first_row + options.padding;
  std::vector<float> y(task.num_x * task.y_stride, options.fill);
  task.y = y.data();
  task.bias = options.bias;
  task.accumulate = options.accumulate;
  task.next = options.next;
  const AlignedBytes scratch(table.quant->scratch_bytes(w.k));
  task.scratch = scratch.data();
  table.quant->matmul(task);
  REQUIRE(scratch.guards_hold());
  return y;
}

}  // namespace kvasir::runtime::testing
