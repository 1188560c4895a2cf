// Where things lie in a panel (panels.h), as constants that the packing code and the kernels of
// every set share. Nothing here is compiled into a function: the files of a set may include it.
//
// A panel is a sequence of groups along k, of one block of 32 columns or of eight (the K types). A
// group is: f16 d [32 rows]; f16 m [32]; the blocks' scale bytes, [blocks][bytes][32]; the blocks'
// codes. The codes of a block are planes, each in registers of 64 bytes: 16 rows of four bytes,
// those of the columns 4q .. 4q + 3 (a "quad") in a byte each.
//   nibbles   [row / 16][4]: quad q in the low half of register q, quad q + 4 in its high half
//   bytes     [row / 16][8]: quad q is register q
//   two bits  [row / 16][2]: quad q in bits 2 (q % 4) and up of register q / 4
//   one bit   [row / 16]:    quad q in bit q
#pragma once

#include "runtime/model/ggml_type.h"

#include <cstdint>

namespace kvasir::runtime {

/// What the scale bytes of a row and block hold.
enum class PanelScales : std::uint8_t {
  kNone,           // the scale is d, the minimum term m
  kSigned,         // s8: the scale is d * s
  kSignedHalves,   // s8, s8: of columns 0..15 and 16..31
  kWithMinimum,    // u8, u8: d * first, -m * second
  kNibblesHalves,  // for each half u8: d * (low nibble), -m * (high nibble)
};

struct PanelFormat {
  std::uint32_t blocks = 1;  // of 32 columns in a group
  int code_bits = 0;         // 2, 3, 4, 5, 6 or 8
  int offset_log2 = -1;      // a weight is scale * (code - 2^offset_log2); -1: nothing subtracted
  bool has_minimum = false;  // a term that the codes do not multiply
  bool has_levels = false;   // a code is the index of an IQ4 level
  PanelScales scales = PanelScales::kNone;

  /// Scales span 16 columns instead of 32.
  consteval bool has_halves() const {
    return scales == PanelScales::kSignedHalves || scales == PanelScales::kNibblesHalves;
  }
  consteval std::uint32_t scale_bytes() const {
    return scales == PanelScales::kNone ? 0 : scales == PanelScales::kSigned ? 1 : 2;
  }
  /// Bits of a code that lie in nibbles or bytes, and which plane has those above.
  consteval bool has_bytes() const { return code_bits == 8; }
  consteval bool has_nibbles() const { return code_bits >= 4 && code_bits <= 6; }
  consteval bool has_two_bits() const { return code_bits == 6 || code_bits <= 3; }
  consteval bool has_one_bit() const { return code_bits == 5 || code_bits == 3; }

  // Bytes from the start of a group.
  consteval std::uint32_t minimum_at() const { return 64; }
  consteval std::uint32_t scales_at() const { return has_minimum ? 128 : 64; }
  consteval std::uint32_t codes_at() const { return scales_at() + blocks * 32 * scale_bytes(); }
  consteval std::uint32_t group_bytes() const { return codes_at() + blocks * block_bytes(); }
  // Bytes from the start of a block's codes. The first plane is nibbles or bytes, if there is one.
  consteval std::uint32_t two_bits_at() const { return has_nibbles() ? 512 : 0; }
  consteval std::uint32_t one_bit_at() const {
    return (has_nibbles() ? 512 : 0) + (has_two_bits() ? 256 : 0);
  }
  consteval std::uint32_t block_bytes() const {
    return has_bytes() ? 1024U : static_cast<std::uint32_t>(128 * code_bits);
  }
};

/// For the types that have panels.
consteval PanelFormat panel_format(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_0:
      return {.code_bits = 4, .offset_log2 = 3};
    case GgmlType::kQ4_1:
      return {.code_bits = 4, .has_minimum = true};
    case GgmlType::kQ5_0:
      return {.code_bits = 5, .offset_log2 = 4};
    case GgmlType::kQ5_1:
      return {.code_bits = 5, .has_minimum = true};
    case GgmlType::kQ8_0:
      return {.code_bits = 8, .offset_log2 = 7};
    case GgmlType::kQ2_K:
      return {
          .blocks = 8, .code_bits = 2, .has_minimum = true, .scales = PanelScales::kNibblesHalves};
    case GgmlType::kQ3_K:
      return {.blocks = 8, .code_bits = 3, .offset_log2 = 2, .scales = PanelScales::kSignedHalves};
    case GgmlType::kQ4_K:
      return {
          .blocks = 8, .code_bits = 4, .has_minimum = true, .scales = PanelScales::kWithMinimum};
    case GgmlType::kQ5_K:
      return {
          .blocks = 8, .code_bits = 5, .has_minimum = true, .scales = PanelScales::kWithMinimum};
    case GgmlType::kQ6_K:
      return {.blocks = 8, .code_bits = 6, .offset_log2 = 5, .scales = PanelScales::kSignedHalves};
    case GgmlType::kIQ4_NL:
      return {.code_bits = 4, .offset_log2 = 7, .has_levels = true};
    case GgmlType::kIQ4_XS:
      return {.blocks = 8,
              .code_bits = 4,
              .offset_log2 = 7,
              .has_levels = true,
              .scales = PanelScales::kSigned};
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16:
      break;
  }
  return {};
}

/// The levels of the IQ4 types, 128 added.
inline constexpr std::uint8_t kIq4LevelCodes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                    129, 141, 153, 166, 181, 197, 217, 241};

}  // namespace kvasir::runtime
