#include "runtime/model/weights.h"

#include "runtime/kernels/float_panels.h"
#include "runtime/kernels/panels.h"
#include "runtime/model/printable.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace kvasir::runtime {
namespace {

/// Thrown inside this file only and caught in read_weights.
struct Refused {
  std::string message;
};

/// Takes tensors by name, checks their shape and remembers which were taken.
class TensorTaker {
 public:
  explicit TensorTaker(const GgufFile& file) : file_(file) {}

  [[nodiscard]] WeightMatrix matrix(const std::string& name, std::uint32_t rows,
                                    std::uint32_t cols) {
    const GgufTensor& tensor = take(name);
    if (tensor.dims != std::vector<std::uint64_t>{cols, rows}) {
      refuse(tensor, "rows, columns " + std::to_string(rows) + ", " + std::to_string(cols));
    }
    return {tensor.type, rows, cols, tensor.data.size() / rows, tensor.data.data()};
  }

  [[nodiscard]] std::vector<float> vector(const std::string& name, std::uint32_t size) {
    const GgufTensor& tensor = take(name);
    if (tensor.type != GgmlType::kF32 || tensor.dims != std::vector<std::uint64_t>{size}) {
      refuse(tensor, "F32 of size " + std::to_string(size));
    }
    std::vector<float> values(size);  // [size]
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    for (const float value : values) {
      if (!std::isfinite(value)) {
        refuse_name(name, "has a value that is not finite");
      }
    }
    return values;
  }

  /// Empty when the file has no such tensor.
  [[nodiscard]] std::vector<float> optional_vector(const std::string& name, std::uint32_t size) {
    return file_.find_tensor(name) == nullptr ? std::vector<float>() : vector(name, size);
  }

  /// For tensors that others read.
  void ignore(const std::string& name) { taken_.insert(name); }

  void refuse_untaken() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (taken_.count(tensor.name) == 0) {
        refuse_name(tensor.name,
                    "is not used by this architecture in this build; leaving it out could change "
                    "what the model computes");
      }
    }
  }

 private:
  const GgufTensor& take(const std::string& name) {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (tensor == nullptr) {
      refuse_name(name, "is missing");
    }
    taken_.insert(name);
    return *tensor;
  }

  [[noreturn]] void refuse(const GgufTensor& tensor, const std::string& expected) const {
    std::string dims;
    for (const std::uint64_t dim : tensor.dims) {
      dims = std::to_string(dim) + (dims.empty() ? "" : ", ") + dims;
    }
    refuse_name(tensor.name, "is " + std::string(type_info(tensor.type).name) + " [" + dims +
                                 "], expected " + expected);
  }

  [[noreturn]] void refuse_name(const std::string& name, const std::string& why) const {
    throw Refused{printable(file_.path(), 400) + ": tensor \"" + printable(name) + "\" " + why};
  }

  const GgufFile& file_;
  std::unordered_set<std::string> taken_;
};

LayerWeights read_layer(TensorTaker& taker, const ModelConfig& config, std::uint32_t layer_index) {
  const std::string prefix = "blk." + std::to_string(layer_index) + ".";
  const std::uint32_t q_width = config.num_heads * config.head_dim;
  const std::uint32_t kv_width = config.num_kv_heads * config.head_dim;
  const FamilyTraits& family = family_traits(config.family);
  LayerWeights layer;
  layer.attention_norm = taker.vector(prefix + "attn_norm.weight", config.width);
  layer.query = taker.matrix(prefix + "attn_q.weight", q_width, config.width);
  layer.key = taker.matrix(prefix + "attn_k.weight", kv_width, config.width);
  layer.value = taker.matrix(prefix + "attn_v.weight", kv_width, config.width);
  layer.query_bias = taker.optional_vector(prefix + "attn_q.bias", q_width);
  layer.key_bias = taker.optional_vector(prefix + "attn_k.bias", kv_width);
  layer.value_bias = taker.optional_vector(prefix + "attn_v.bias", kv_width);
  if (family.has_head_norms) {
    layer.query_norm = taker.vector(prefix + "attn_q_norm.weight", config.head_dim);
    layer.key_norm = taker.vector(prefix + "attn_k_norm.weight", config.head_dim);
  }
  layer.attention_output = taker.matrix(prefix + "attn_output.weight", config.width, q_width);
  layer.attention_output_bias = taker.optional_vector(prefix + "attn_output.bias", config.width);
  if (family.has_post_norms) {
    layer.post_attention_norm = taker.vector(prefix + "post_attention_norm.weight", config.width);
    layer.post_ffn_norm = taker.vector(prefix + "post_ffw_norm.weight", config.width);
  }
  layer.ffn_norm = taker.vector(prefix + "ffn_norm.weight", config.width);
  layer.ffn_gate = taker.matrix(prefix + "ffn_gate.weight", config.ffn_width, config.width);
  layer.ffn_up = taker.matrix(prefix + "ffn_up.weight", config.ffn_width, config.width);
  layer.ffn_down = taker.matrix(prefix + "ffn_down.weight", config.width, config.ffn_width);
  return layer;
}

ModelWeights read_all(const GgufFile& file, const ModelConfig& config) {
  TensorTaker taker(file);
  ModelWeights weights;
  weights.token_embedding = taker.matrix("token_embd.weight", config.vocab_size, config.width);
  for (std::uint32_t layer_index = 0; layer_index < config.num_layers; ++layer_index) {
    weights.layers.push_back(read_layer(taker, config, layer_index));
  }
  weights.output_norm = taker.vector("output_norm.weight", config.width);
  weights.tied_head = config.tied_head;
  weights.output_head = config.tied_head
                            ? weights.token_embedding
                            : taker.matrix("output.weight", config.vocab_size, config.width);
  taker.ignore("rope_freqs.weight");  // folded into the rope of ModelConfig::layer_kinds
  taker.refuse_untaken();
  return weights;
}

}  // namespace

std::size_t WeightMatrix::size_bytes() const {
  switch (layout) {
    case WeightLayout::kPanels:
      return num_panels(rows) * panel_bytes(type, cols);
    case WeightLayout::kFloatPanels:
      return num_panels(rows) * float_panel_bytes(type, cols);
    case WeightLayout::kRows:
      break;
  }
  return rows * row_bytes;
}

std::vector<WeightMatrix*> ModelWeights::matrices() {
  std::vector<WeightMatrix*> all;
  for (LayerWeights& layer : layers) {
    for (WeightMatrix* matrix : {&layer.query, &layer.key, &layer.value, &layer.attention_output,
                                 &layer.ffn_gate, &layer.ffn_up, &layer.ffn_down}) {
      all.push_back(matrix);
    }
  }
  if (!tied_head) all.push_back(&output_head);
  all.push_back(&token_embedding);
  return all;
}

std::vector<const WeightMatrix*> ModelWeights::matrices() const {
  // The list is the same; only its elements may not be written through.
  const auto all = const_cast<ModelWeights*>(this)->matrices();
  return {all.begin(), all.end()};
}

Result<ModelWeights> read_weights(const GgufFile& file, const ModelConfig& config) {
  try {
    return read_all(file, config);
  } catch (const Refused& refused) {
    return fail(ErrorCode::kInvalidModelFile, refused.message);
  }
}

}  // namespace kvasir::runtime
