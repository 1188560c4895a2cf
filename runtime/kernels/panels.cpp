#include "runtime/kernels/panels.h"

#include "core/check.h"
#include "runtime/kernels/panel_format.h"

#include <bit>
#include <cstring>

namespace kvasir::runtime {
namespace {

#include "runtime/kernels/shared/panel_types.inc"

// Codes travel four to a word, the first in the lowest byte: so they lie in files and panels.
static_assert(std::endian::native == std::endian::little);

std::uint32_t load_word(const std::byte* p) {
  std::uint32_t word = 0;
  std::memcpy(&word, p, sizeof word);
  return word;
}
void store_word(std::byte* p, std::uint32_t word) { std::memcpy(p, &word, sizeof word); }
std::uint32_t byte_at(const std::byte* p, std::uint32_t i) {
  return static_cast<std::uint32_t>(p[i]);
}

/// In every byte of a word.
constexpr std::uint32_t in_bytes(std::uint32_t bits) { return bits * 0x01010101U; }

/// The 32 codes of a row and block: quad q is columns 4q .. 4q + 3.
struct Codes {
  std::uint32_t quad[8];
};

// ---- Files: what dequantize.inc says of each type's block, one block of 32 columns at a time.

/// Sixteen bytes: columns 0..15 in the low nibbles, 16..31 in the high ones.
Codes split_nibbles(const std::byte* p) {
  Codes codes;
  for (int q = 0; q < 4; ++q) {
    const std::uint32_t word = load_word(p + 4 * q);
    codes.quad[q] = word & in_bytes(15);
    codes.quad[q + 4] = (word >> 4) & in_bytes(15);
  }
  return codes;
}

/// Fifth bits, that of column i at bit i.
void add_fifth_bits(Codes& codes, std::uint32_t bits) {
  for (int q = 0; q < 8; ++q) {
    // Bit i of four goes to i + 7 i = 8 i; the other products of the factor are masked away.
    const std::uint32_t spread = (((bits >> (4 * q)) & 15U) * 0x00204081U) & in_bytes(1);
    codes.quad[q] |= spread << 4;
  }
}

/// 32 bytes, of each `mask` bits from `shift`.
Codes bit_fields(const std::byte* p, std::uint32_t shift, std::uint32_t mask) {
  Codes codes;
  for (int q = 0; q < 8; ++q) codes.quad[q] = (load_word(p + 4 * q) >> shift) & in_bytes(mask);
  return codes;
}
void add_upper(Codes& codes, const Codes& upper, int shift) {
  for (int q = 0; q < 8; ++q) codes.quad[q] |= upper.quad[q] << shift;
}

/// The codes of block i of a file's block.
template <GgmlType kType>
Codes file_codes(const std::byte* block, std::uint32_t i) {
  if constexpr (kType == GgmlType::kQ4_0 || kType == GgmlType::kIQ4_NL) {
    return split_nibbles(block + 2);
  } else if constexpr (kType == GgmlType::kQ4_1) {
    return split_nibbles(block + 4);
  } else if constexpr (kType == GgmlType::kQ5_0 || kType == GgmlType::kQ5_1) {
    const std::byte* bits = block + (kType == GgmlType::kQ5_0 ? 2 : 4);
    Codes codes = split_nibbles(bits + 4);
    add_fifth_bits(codes, load_word(bits));
    return codes;
  } else if constexpr (kType == GgmlType::kQ8_0) {
    Codes codes;
    for (int q = 0; q < 8; ++q) codes.quad[q] = load_word(block + 2 + 4 * q) ^ in_bytes(128);
    return codes;
  } else if constexpr (kType == GgmlType::kQ2_K) {
    return bit_fields(block + 16 + 32 * (i / 4), 2 * (i % 4), 3);
  } else if constexpr (kType == GgmlType::kQ3_K) {
    Codes codes = bit_fields(block + 32 + 32 * (i / 4), 2 * (i % 4), 3);
    add_upper(codes, bit_fields(block, i, 1), 2);
    return codes;
  } else if constexpr (kType == GgmlType::kQ4_K) {
    return bit_fields(block + 16 + 32 * (i / 2), 4 * (i % 2), 15);
  } else if constexpr (kType == GgmlType::kQ5_K) {
    Codes codes = bit_fields(block + 48 + 32 * (i / 2), 4 * (i % 2), 15);
    add_upper(codes, bit_fields(block + 16, i, 1), 4);
    return codes;
  } else if constexpr (kType == GgmlType::kQ6_K) {
    const std::uint32_t half = i / 4, quarter = i % 4;
    Codes codes = bit_fields(block + 64 * half + 32 * (quarter % 2), 4 * (quarter / 2), 15);
    add_upper(codes, bit_fields(block + 128 + 32 * half, 2 * quarter, 3), 4);
    return codes;
  } else {
    static_assert(kType == GgmlType::kIQ4_XS);
    return split_nibbles(block + 8 + 16 * i);
  }
}

/// Where the file's block has its scale; the minimum follows it in every type that has one.
template <GgmlType kType>
constexpr std::uint32_t file_scale_at() {
  switch (kType) {
    case GgmlType::kQ2_K:
      return 80;
    case GgmlType::kQ3_K:
      return 108;
    case GgmlType::kQ6_K:
      return 208;
    default:
      return 0;
  }
}

/// Scale number `i` of the sixteen of Q3_K: nibbles in eight bytes, upper bits in the next four.
std::uint32_t q3_scale(const std::byte* packed, std::uint32_t i) {
  const std::uint32_t low = i < 8 ? byte_at(packed, i) & 15U : byte_at(packed, i - 8) >> 4;
  return low | (((byte_at(packed, 8 + i % 4) >> (2 * (i / 4))) & 3U) << 4);
}

struct ScaleBytes {
  std::uint32_t first = 0, second = 0;
};

/// The panel's scale bytes of block i of a file's block.
template <GgmlType kType>
ScaleBytes file_scales(const std::byte* block, std::uint32_t i) {
  if constexpr (kType == GgmlType::kQ2_K) {
    return {byte_at(block, 2 * i), byte_at(block, 2 * i + 1)};
  } else if constexpr (kType == GgmlType::kQ3_K) {
    return {q3_scale(block + 96, 2 * i) - 32, q3_scale(block + 96, 2 * i + 1) - 32};
  } else if constexpr (kType == GgmlType::kQ6_K) {
    return {byte_at(block, 192 + 2 * i), byte_at(block, 192 + 2 * i + 1)};
  } else if constexpr (kType == GgmlType::kQ4_K || kType == GgmlType::kQ5_K) {
    // Six bits each. The first four pairs have bytes of their own, whose upper bits complete the
    // nibbles of the last four.
    const std::byte* p = block + 4;
    if (i < 4) return {byte_at(p, i) & 63U, byte_at(p, i + 4) & 63U};
    return {(byte_at(p, i + 4) & 15U) | ((byte_at(p, i - 4) >> 6) << 4),
            (byte_at(p, i + 4) >> 4) | ((byte_at(p, i) >> 6) << 4)};
  } else if constexpr (kType == GgmlType::kIQ4_XS) {
    const std::uint32_t low = (byte_at(block, 4 + i / 2) >> (4 * (i % 2))) & 15U;
    const std::uint32_t high = (byte_at(block, 2 + i / 4) >> (2 * (i % 4))) & 3U;
    return {(low | (high << 4)) - 32, 0};
  } else {
    return {};
  }
}

// ---- Panels: see panel_format.h.

/// The word of `row` in register `index` of a plane with `registers` of them for sixteen rows.
template <class Byte>
Byte* plane_word(Byte* plane, std::uint32_t registers, std::uint32_t index, std::uint32_t row) {
  return plane + std::size_t{(row / 16 * registers + index) * 64 + row % 16 * 4};
}

template <GgmlType kType>
void store_codes(const Codes& codes, std::uint32_t row, std::byte* block) {
  constexpr PanelFormat kFormat = panel_format(kType);
  const std::uint32_t* quad = codes.quad;
  if constexpr (kFormat.has_bytes()) {
    for (std::uint32_t q = 0; q < 8; ++q) store_word(plane_word(block, 8, q, row), quad[q]);
  }
  if constexpr (kFormat.has_nibbles()) {
    for (std::uint32_t q = 0; q < 4; ++q) {
      const std::uint32_t low = quad[q] & in_bytes(15), high = quad[q + 4] & in_bytes(15);
      store_word(plane_word(block, 4, q, row), low | (high << 4));
    }
  }
  constexpr int kAbove = kFormat.has_nibbles() ? 4 : 0;  // where the two-bit plane's codes begin
  if constexpr (kFormat.has_two_bits()) {
    for (std::uint32_t half = 0; half < 2; ++half) {
      std::uint32_t word = 0;
      for (std::uint32_t q = 0; q < 4; ++q) {
        word |= ((quad[4 * half + q] >> kAbove) & in_bytes(3)) << (2 * q);
      }
      store_word(plane_word(block + kFormat.two_bits_at(), 2, half, row), word);
    }
  }
  if constexpr (kFormat.has_one_bit()) {
    std::uint32_t word = 0;
    for (std::uint32_t q = 0; q < 8; ++q) {
      word |= ((quad[q] >> (kFormat.code_bits - 1)) & in_bytes(1)) << q;
    }
    store_word(plane_word(block + kFormat.one_bit_at(), 1, 0, row), word);
  }
}

template <GgmlType kType>
Codes load_codes(std::uint32_t row, const std::byte* block) {
  constexpr PanelFormat kFormat = panel_format(kType);
  Codes codes = {};
  for (std::uint32_t q = 0; q < 8; ++q) {
    std::uint32_t& quad = codes.quad[q];
    if constexpr (kFormat.has_bytes()) quad = load_word(plane_word(block, 8, q, row));
    if constexpr (kFormat.has_nibbles()) {
      quad = (load_word(plane_word(block, 4, q % 4, row)) >> (q / 4 * 4)) & in_bytes(15);
    }
    if constexpr (kFormat.has_two_bits()) {
      const std::uint32_t word =
          load_word(plane_word(block + kFormat.two_bits_at(), 2, q / 4, row));
      quad |= ((word >> (q % 4 * 2)) & in_bytes(3)) << (kFormat.has_nibbles() ? 4 : 0);
    }
    if constexpr (kFormat.has_one_bit()) {
      const std::uint32_t word = load_word(plane_word(block + kFormat.one_bit_at(), 1, 0, row));
      quad |= ((word >> q) & in_bytes(1)) << (kFormat.code_bits - 1);
    }
  }
  return codes;
}

template <GgmlType kType>
void pack_group(const std::byte* file_block, std::uint32_t row, std::byte* group) {
  constexpr PanelFormat kFormat = panel_format(kType);
  const std::byte* scale = file_block + file_scale_at<kType>();
  std::memcpy(group + std::size_t{row} * 2, scale, 2);
  if constexpr (kFormat.has_minimum) {
    std::memcpy(group + kFormat.minimum_at() + std::size_t{row} * 2, scale + 2, 2);
  }
  for (std::uint32_t i = 0; i < kFormat.blocks; ++i) {
    constexpr std::uint32_t kBytes = kFormat.scale_bytes();
    if constexpr (kBytes > 0) {
      const ScaleBytes scales = file_scales<kType>(file_block, i);
      std::byte* bytes = group + kFormat.scales_at() + std::size_t{i} * 32 * kBytes + row;
      bytes[0] = static_cast<std::byte>(scales.first);
      if constexpr (kBytes > 1) bytes[32] = static_cast<std::byte>(scales.second);
    }
    store_codes<kType>(file_codes<kType>(file_block, i), row,
                       group + kFormat.codes_at() + std::size_t{i} * kFormat.block_bytes());
  }
}

/// Exact. A signalling NaN stays one: the product that follows makes it quiet.
float half_to_float(const std::byte* p) {
  std::uint16_t half = 0;
  std::memcpy(&half, p, sizeof half);
  const std::uint32_t magnitude = half & 0x7FFFU;
  // The bits at their float32 place are the value divided by 2^112, subnormals included.
  std::uint32_t bits =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112F);
  if (magnitude >= 0x7C00U) bits |= 0x7F800000U;
  return std::bit_cast<float>(bits | ((half & 0x8000U) << 16));
}

struct ScaleAndOffset {
  float scale = 0.0F, offset = 0.0F;
};

/// Of columns 16 * half and up of block i; the operations are those of the file's format.
template <GgmlType kType>
ScaleAndOffset scale_and_offset(const std::byte* group, std::uint32_t row, std::uint32_t i,
                                std::uint32_t half) {
  constexpr PanelFormat kFormat = panel_format(kType);
  const float d = half_to_float(group + std::size_t{row} * 2);
  const float m = kFormat.has_minimum
                      ? half_to_float(group + kFormat.minimum_at() + std::size_t{row} * 2)
                      : 0.0F;
  const std::byte* bytes =
      group + kFormat.scales_at() + std::size_t{i} * 32 * kFormat.scale_bytes() + row;
  const auto byte_of = [&](std::uint32_t n) {
    return static_cast<int>(bytes[std::size_t{n} * 32]);
  };
  const auto signed_of = [&](std::uint32_t n) {
    return static_cast<float>(static_cast<std::int8_t>(bytes[std::size_t{n} * 32]));
  };
  if constexpr (kFormat.scales == PanelScales::kSigned) {
    return {d * signed_of(0), 0.0F};
  } else if constexpr (kFormat.scales == PanelScales::kSignedHalves) {
    return {d * signed_of(half), 0.0F};
  } else if constexpr (kFormat.scales == PanelScales::kWithMinimum) {
    return {d * static_cast<float>(byte_of(0)), m * static_cast<float>(-byte_of(1))};
  } else if constexpr (kFormat.scales == PanelScales::kNibblesHalves) {
    return {d * static_cast<float>(byte_of(half) & 15),
            -(m * static_cast<float>(byte_of(half) >> 4))};
  } else {
    return {d, m};
  }
}

template <GgmlType kType>
void unpack_block(const std::byte* group, std::uint32_t row, std::uint32_t i, float* out) {
  constexpr PanelFormat kFormat = panel_format(kType);
  const Codes codes =
      load_codes<kType>(row, group + kFormat.codes_at() + std::size_t{i} * kFormat.block_bytes());
  for (std::uint32_t column = 0; column < kQuantBlock; ++column) {
    const auto [scale, offset] = scale_and_offset<kType>(group, row, i, column / 16);
    std::uint32_t code = (codes.quad[column / 4] >> (column % 4 * 8)) & 255U;
    if constexpr (kFormat.has_levels) code = kIq4LevelCodes[code];
    constexpr int kZero = kFormat.offset_log2 < 0 ? 0 : 1 << (kFormat.offset_log2 & 7);
    const float product = static_cast<float>(static_cast<int>(code) - kZero) * scale;
    // Adding +0 would lose the sign of a product of -0.
    out[column] = kFormat.has_minimum ? product + offset : product;
  }
}

template <GgmlType kType>
std::uint32_t num_groups(std::uint32_t k) {
  constexpr std::uint32_t kColumns = panel_format(kType).blocks * kQuantBlock;
  KVASIR_CHECK(k % kColumns == 0);
  return k / kColumns;
}

}  // namespace

bool has_panels(GgmlType type) {
  return with_panel_type(type, []<GgmlType>() {});
}

std::size_t panel_bytes(GgmlType type, std::uint32_t k) {
  std::size_t bytes = 0;
  KVASIR_CHECK(with_panel_type(type, [&]<GgmlType kType>() {
    bytes = std::size_t{num_groups<kType>(k)} * panel_format(kType).group_bytes();
  }));
  return bytes;
}

void pack_panel(GgmlType type, const std::byte* rows, std::size_t row_bytes, std::uint32_t num_rows,
                std::uint32_t k, std::byte* panel) {
  KVASIR_CHECK(num_rows <= kPanelRows);
  if (num_rows < kPanelRows) std::memset(panel, 0, panel_bytes(type, k));
  const std::size_t file_block_bytes = type_info(type).block_bytes;
  KVASIR_CHECK(with_panel_type(type, [&]<GgmlType kType>() {
    // Groups outside: the rows' groups of one place fill a piece of the panel that stays in L1.
    for (std::uint32_t g = 0; g < num_groups<kType>(k); ++g) {
      for (std::uint32_t row = 0; row < num_rows; ++row) {
        pack_group<kType>(rows + row * row_bytes + g * file_block_bytes, row,
                          panel + std::size_t{g} * panel_format(kType).group_bytes());
      }
    }
  }));
}

void unpack_row(GgmlType type, const std::byte* panel, std::uint32_t row, std::uint32_t k,
                float* out) {
  KVASIR_CHECK(row < kPanelRows);
  KVASIR_CHECK(with_panel_type(type, [&]<GgmlType kType>() {
    constexpr PanelFormat kFormat = panel_format(kType);
    for (std::uint32_t g = 0; g < num_groups<kType>(k); ++g) {
      for (std::uint32_t i = 0; i < kFormat.blocks; ++i, out += kQuantBlock) {
        unpack_block<kType>(panel + std::size_t{g} * kFormat.group_bytes(), row, i, out);
      }
    }
  }));
}

}  // namespace kvasir::runtime
