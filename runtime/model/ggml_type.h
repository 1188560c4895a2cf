// The element types of GGUF tensors that this build reads, with their block shapes. How blocks
// become floats is the kernels' business (kernels/scalar/dequantize), how files are read is
// gguf_reader's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvasir::runtime {

/// Numbers as in the GGUF specification.
enum class GgmlType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
};

struct GgmlTypeInfo {
  GgmlType type{};
  std::string_view name;
  std::uint32_t block_elements = 0;
  std::uint32_t block_bytes = 0;
};

/// Absent for types that this build does not read.
[[nodiscard]] std::optional<GgmlTypeInfo> ggml_type_info(std::uint32_t ggml_type);
/// For a type that is known to be read.
[[nodiscard]] const GgmlTypeInfo& type_info(GgmlType type);
/// For messages: the name of a type that exists but is not read here ("IQ2_XXS"), or "unknown".
[[nodiscard]] std::string_view unread_type_name(std::uint32_t ggml_type);

}  // namespace kvasir::runtime
