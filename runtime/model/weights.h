// Typed views of a model's tensors with their shapes checked; the bytes stay in the mapped file.
// Which kernels multiply by them is the decoder's choice.
#pragma once

#include "core/result.h"
#include "runtime/model/ggml_type.h"
#include "runtime/model/gguf_reader.h"
#include "runtime/model/model_config.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvasir::runtime {

/// A row-major matrix [rows, cols] of blocks: row r starts at data + r * row_bytes.
struct WeightMatrix {
  GgmlType type = GgmlType::kF32;
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;
  std::size_t row_bytes = 0;
  const std::byte* data = nullptr;
};

struct LayerWeights {
  std::vector<float> attention_norm;                    // [width]
  WeightMatrix query, key, value;                       // [heads * head_dim, width]
  std::vector<float> query_bias, key_bias, value_bias;  // empty, or one for each row
  WeightMatrix attention_output;                        // [width, num_heads * head_dim]
  std::vector<float> attention_output_bias;             // empty or [width]
  std::vector<float> ffn_norm;                          // [width]
  WeightMatrix ffn_gate, ffn_up;                        // [ffn_width, width]
  WeightMatrix ffn_down;                                // [width, ffn_width]
};

struct ModelWeights {
  WeightMatrix token_embedding;  // [vocab_size, width]
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;  // [width]
  WeightMatrix output_head;        // [vocab_size, width]; the token embedding when tied
};

/// `file` must outlive the result. Errors: kInvalidModelFile naming the tensor, its shape and the
/// one expected. Tensors that the family does not use are refused by name (never ignored),
/// `rope_freqs.weight` excepted.
[[nodiscard]] Result<ModelWeights> read_weights(const GgufFile& file, const ModelConfig& config);

}  // namespace kvasir::runtime
