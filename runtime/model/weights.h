// A model's tensors by role, with their shapes checked: views of the mapped file as read here, or
// of memory of their own once packed (pack_weights.h). Which kernel multiplies by a matrix follows
// from its layout.
#pragma once

#include "core/page_buffer.h"
#include "core/result.h"
#include "runtime/model/ggml_type.h"
#include "runtime/model/gguf_reader.h"
#include "runtime/model/model_config.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvasir::runtime {

enum class WeightLayout : std::uint8_t {
  kRows,         // as in the file: row r of blocks at data + r * row_bytes; float activations
  kPanels,       // runtime/kernels/panels.h: thirty-two rows together; int8 activations
  kFloatPanels,  // runtime/kernels/float_panels.h: the same for float types; float activations
};

/// A matrix [rows, cols].
struct WeightMatrix {
  GgmlType type = GgmlType::kF32;
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;
  std::size_t row_bytes = 0;  // of a row as in the file, whatever the layout
  const std::byte* data = nullptr;
  WeightLayout layout = WeightLayout::kRows;

  /// Bytes in memory.
  [[nodiscard]] std::size_t size_bytes() const;
};

struct LayerWeights {
  std::vector<float> attention_norm;                    // [width]
  WeightMatrix query, key, value;                       // [heads * head_dim, width]
  std::vector<float> query_bias, key_bias, value_bias;  // empty, or one for each row
  std::vector<float> query_norm, key_norm;              // empty or [head_dim]
  WeightMatrix attention_output;                        // [width, num_heads * head_dim]
  std::vector<float> attention_output_bias;             // empty or [width]
  std::vector<float> post_attention_norm;               // empty or [width]
  std::vector<float> ffn_norm;                          // [width]
  WeightMatrix ffn_gate, ffn_up;                        // [ffn_width, width]
  WeightMatrix ffn_down;                                // [width, ffn_width]
  std::vector<float> post_ffn_norm;                     // empty or [width]
};

struct ModelWeights {
  WeightMatrix token_embedding;  // [vocab_size, width]
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;  // [width]
  WeightMatrix output_head;        // [vocab_size, width]
  bool tied_head = false;          // output_head is token_embedding
  PageBuffer pages;                // what the matrices point into, when they are packed

  /// Every matrix once (a tied head only as the token embedding), in the order of a step.
  [[nodiscard]] std::vector<WeightMatrix*> matrices();
  [[nodiscard]] std::vector<const WeightMatrix*> matrices() const;
};

/// `file` must outlive the result. Errors: kInvalidModelFile naming the tensor, its shape and the
/// one expected. Tensors that the family does not use are refused by name (never ignored),
/// `rope_freqs.weight` excepted.
[[nodiscard]] Result<ModelWeights> read_weights(const GgufFile& file, const ModelConfig& config);

}  // namespace kvasir::runtime
