// The hyperparameters of one model and what this build can do with it. Read from GGUF metadata;
// weights are in weights.h.
#pragma once

#include "core/result.h"
#include "kvcache/kv_geometry.h"
#include "runtime/model/gguf_reader.h"
#include "runtime/model/model_family.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir::runtime {

/// Rotary embedding with its scaling already folded in: angle of pair i at position p is p *
/// inverse_frequency[i], and both cosine and sine are multiplied by `magnitude`.
struct RopeConfig {
  RopePairs pairs = RopePairs::kAdjacent;
  std::uint32_t dims = 0;                 // rotated dimensions of a head, even, <= head_dim
  std::vector<double> inverse_frequency;  // [dims / 2]
  float magnitude = 1.0F;                 // YaRN's attention factor, else 1
};

/// Layers of a model that attend alike.
struct LayerKind {
  std::uint32_t window_tokens = 0;  // positions a query sees, its own included; 0: all
  RopeConfig rope;
};

struct ModelConfig {
  std::string architecture;  // as in the file
  std::string name;          // general.name, or the file's stem
  ModelFamily family = ModelFamily::kLlama;
  std::uint32_t num_layers = 0;
  std::uint32_t width = 0;
  std::uint32_t ffn_width = 0;
  std::uint32_t num_heads = 0;
  std::uint32_t num_kv_heads = 0;  // divides num_heads
  std::uint32_t head_dim = 0;
  std::uint32_t vocab_size = 0;  // logits width: rows of the output head
  std::uint32_t context_tokens = 0;
  float rms_epsilon = 0.0F;
  std::vector<LayerKind> layer_kinds = {LayerKind{}};
  std::vector<std::uint8_t> kind_of_layer;  // [num_layers]; empty: all are of the first kind
  /// Scores are divided by the square root of it; 0: of head_dim.
  std::uint32_t score_dims = 0;
  bool tied_head = false;

  [[nodiscard]] std::size_t kind_index(std::uint32_t layer) const {
    return kind_of_layer.empty() ? 0 : kind_of_layer[layer];
  }
  /// What multiplies the products of queries and keys.
  [[nodiscard]] float attention_scale() const;
  /// What multiplies embeddings: 1, or the square root of the width rounded to float.
  [[nodiscard]] float embedding_scale() const;
  /// Layers in groups of one window each, those without a window first.
  [[nodiscard]] kvcache::KvGeometry kv_geometry(kvcache::KvType type,
                                                std::uint32_t block_tokens) const;
};

/// Errors: kInvalidModelFile naming the key and what this build supports. Windows: of all layers,
/// or of those that the file or the family says (layer_kinds.h). Rope scaling: none, linear, yarn,
/// and the `rope_freqs.weight` factors of Llama 3; anything else is refused by name.
[[nodiscard]] Result<ModelConfig> read_model_config(const GgufFile& file);

/// A hash of everything that makes KV blocks of two models incompatible (architecture, shapes,
/// rope, tensor digest). The same for any number of threads. Throws std::system_error (threads).
[[nodiscard]] std::uint64_t model_hash(const GgufFile& file, const ModelConfig& config,
                                       std::uint32_t num_threads);

}  // namespace kvasir::runtime
