#include "runtime/model/ggml_type.h"

#include "core/check.h"

#include <array>
#include <cstdint>
#include <optional>

namespace kvasir::runtime {
namespace {

// Bytes of a block are its scales and its packed quants: Q4_0 is an f16 scale and 32 nibbles (2 +
// 16 = 18), Q4_K is two f16 scales, twelve bytes of 6-bit scales and 256 nibbles (4 + 12 + 128 =
// 144), and so on.
constexpr std::array<GgmlTypeInfo, 15> kTypes{{
    {GgmlType::kF32, "F32", 1, 4},
    {GgmlType::kF16, "F16", 1, 2},
    {GgmlType::kQ4_0, "Q4_0", 32, 2 + 16},
    {GgmlType::kQ4_1, "Q4_1", 32, 4 + 16},
    {GgmlType::kQ5_0, "Q5_0", 32, 2 + 4 + 16},
    {GgmlType::kQ5_1, "Q5_1", 32, 4 + 4 + 16},
    {GgmlType::kQ8_0, "Q8_0", 32, 2 + 32},
    {GgmlType::kQ2_K, "Q2_K", 256, 16 + 64 + 4},
    {GgmlType::kQ3_K, "Q3_K", 256, 32 + 64 + 12 + 2},
    {GgmlType::kQ4_K, "Q4_K", 256, 4 + 12 + 128},
    {GgmlType::kQ5_K, "Q5_K", 256, 4 + 12 + 32 + 128},
    {GgmlType::kQ6_K, "Q6_K", 256, 128 + 64 + 16 + 2},
    {GgmlType::kIQ4_NL, "IQ4_NL", 32, 2 + 16},
    {GgmlType::kIQ4_XS, "IQ4_XS", 256, 2 + 2 + 4 + 128},
    {GgmlType::kBF16, "BF16", 1, 2},
}};

const GgmlTypeInfo* find_info(std::uint32_t ggml_type) {
  for (const GgmlTypeInfo& info : kTypes) {
    if (static_cast<std::uint32_t>(info.type) == ggml_type) {
      return &info;
    }
  }
  return nullptr;
}

}  // namespace

std::optional<GgmlTypeInfo> ggml_type_info(std::uint32_t ggml_type) {
  const GgmlTypeInfo* info = find_info(ggml_type);
  return info == nullptr ? std::nullopt : std::optional(*info);
}

const GgmlTypeInfo& type_info(GgmlType type) {
  const GgmlTypeInfo* info = find_info(static_cast<std::uint32_t>(type));
  KVASIR_CHECK(info != nullptr, "type " << static_cast<std::uint32_t>(type));
  return *info;
}

std::string_view unread_type_name(std::uint32_t ggml_type) {
  switch (ggml_type) {
    case 4:
      return "Q4_2";
    case 5:
      return "Q4_3";
    case 9:
      return "Q8_1";
    case 15:
      return "Q8_K";
    case 16:
      return "IQ2_XXS";
    case 17:
      return "IQ2_XS";
    case 18:
      return "IQ3_XXS";
    case 19:
      return "IQ1_S";
    case 21:
      return "IQ3_S";
    case 22:
      return "IQ2_S";
    case 24:
      return "I8";
    case 25:
      return "I16";
    case 26:
      return "I32";
    case 27:
      return "I64";
    case 28:
      return "F64";
    case 29:
      return "IQ1_M";
    case 34:
      return "TQ1_0";
    case 35:
      return "TQ2_0";
    case 39:
      return "MXFP4";
    default:
      return "unknown";
  }
}

}  // namespace kvasir::runtime
