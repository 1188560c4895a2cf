// The hyperparameters of one model and what this build can do with it. Read from GGUF metadata;
// weights are in weights.h.
#pragma once

#include "core/result.h"
#include "kvcache/kv_geometry.h"
#include "runtime/model/gguf_reader.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir::runtime {

enum class ModelFamily : std::uint8_t { kLlama, kQwen2 };

/// Which dimensions of a head rotate together.
enum class RopePairs : std::uint8_t {
  kAdjacent,  // (2i, 2i + 1): architecture llama in GGUF
  kHalves,    // (i, i + rope_dims / 2): qwen2
};

/// Rotary embedding with its scaling already folded in: angle of pair i at position p is p *
/// inverse_frequency[i], and both cosine and sine are multiplied by `magnitude`.
struct RopeConfig {
  RopePairs pairs = RopePairs::kAdjacent;
  std::uint32_t dims = 0;                 // rotated dimensions of a head, even, <= head_dim
  std::vector<double> inverse_frequency;  // [dims / 2]
  float magnitude = 1.0F;                 // YaRN's attention factor, else 1
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
  RopeConfig rope;
  bool tied_head = false;

  [[nodiscard]] kvcache::KvGeometry kv_geometry(kvcache::KvType type,
                                                std::uint32_t block_tokens) const;
};

/// Errors: kInvalidModelFile naming the key and what this build supports. Rope scaling: none,
/// linear, yarn, and the `rope_freqs.weight` factors of Llama 3; anything else is refused by name.
[[nodiscard]] Result<ModelConfig> read_model_config(const GgufFile& file);

/// A hash of everything that makes KV blocks of two models incompatible (architecture, shapes,
/// rope, tensor digest). The same for any number of threads. Throws std::system_error (threads).
[[nodiscard]] std::uint64_t model_hash(const GgufFile& file, const ModelConfig& config,
                                       std::uint32_t num_threads);

}  // namespace kvasir::runtime
