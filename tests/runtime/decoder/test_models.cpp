#include "tests/runtime/decoder/test_models.h"

#include "core/rng.h"
#include "runtime/model/pack_weights.h"
#include "runtime/model/rope_config.h"
#include "tests/support/sha256.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace kvasir::runtime::test {
namespace {

constexpr const char* kSmolLm2Sha256 =
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

constexpr const char* kGemma3Sha256 =
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818";

std::string smollm2_path() {
  if (const char* path = std::getenv("KVASIR_TEST_MODEL")) return path;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base = cache != nullptr && *cache != '\0'
                               ? std::string(cache)
                               : std::string(home != nullptr ? home : "") + "/.cache";
  return base + "/kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

/// Fills tensors one after another from a counter-based generator.
class WeightMaker {
 public:
  WeightMaker(TestModel& model, std::uint64_t seed) : model_(model), seed_(seed) {}

  WeightMatrix matrix(std::uint32_t rows, std::uint32_t cols, double scale) {
    model_.matrices.push_back(values(std::size_t{rows} * cols, 0.0, scale));
    const auto& data = model_.matrices.back();
    return {GgmlType::kF32, rows, cols, cols * sizeof(float),
            reinterpret_cast<const std::byte*>(data.data())};
  }
  /// Uniform in center +- scale.
  std::vector<float> values(std::size_t count, double center, double scale) {
    std::vector<float> out(count);
    for (float& value : out) {
      value = static_cast<float>(
          center +
          scale * (2.0 * uniform01({.seed = seed_, .choice_index = 0, .position = next_++}) - 1.0));
    }
    return out;
  }

 private:
  TestModel& model_;
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

ModelConfig tiny_config(const TinyShape& shape) {
  ModelConfig config;
  config.family = shape.family;
  config.architecture = std::string(family_traits(shape.family).architecture);
  config.name = "tiny";
  config.num_layers = shape.num_layers;
  config.width = shape.width;
  config.ffn_width = shape.ffn_width;
  config.num_heads = shape.num_heads;
  config.num_kv_heads = shape.num_kv_heads;
  config.head_dim = shape.head_dim;
  config.vocab_size = shape.vocab_size;
  config.context_tokens = 1024;
  config.rms_epsilon = 1e-5F;
  const RopeShape rope{family_traits(shape.family).pairs, shape.head_dim, config.context_tokens};
  config.layer_kinds[0].rope = plain_rope_config(rope, shape.head_dim, 10'000.0);
  if (shape.window_tokens == 0) return config;
  LayerKind windowed{shape.window_tokens, plain_rope_config(rope, shape.head_dim, 1'000.0)};
  if (shape.full_layer_period == 0) {
    config.layer_kinds = {windowed};
    return config;
  }
  config.layer_kinds.push_back(windowed);
  for (std::uint32_t layer = 0; layer < shape.num_layers; ++layer) {
    config.kind_of_layer.push_back((layer + 1) % shape.full_layer_period == 0 ? 0 : 1);
  }
  return config;
}

std::uint16_t half_of(float x) {
  // The scales of these models are normal halves; the bits below are cut off.
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFFU) < 0x38800000U) return 0;
  return static_cast<std::uint16_t>(((bits >> 16U) & 0x8000U) |
                                    (((bits & 0x7FFFFFFFU) - 0x38000000U) >> 13U));
}

float float_of(std::uint16_t half) {
  if ((half & 0x7FFFU) == 0) return 0.0F;
  return std::bit_cast<float>(((half & 0x8000U) << 16U) |
                              (((half & 0x7FFFU) << 13U) + 0x38000000U));
}

/// Thirty-two floats as one block: scale (and minimum), then codes. Rounds to the nearest code; how
/// well does not matter here.
void append_block(const float* x, GgmlType type, std::vector<std::byte>& out) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  const float largest = std::max(std::abs(*low), std::abs(*high));
  const bool has_minimum = type == GgmlType::kQ4_1;
  const float levels = type == GgmlType::kQ8_0 ? 127.0F : has_minimum ? 15.0F : 7.0F;
  const std::uint16_t scale = half_of((has_minimum ? *high - *low : largest) / levels);
  const std::uint16_t minimum = half_of(*low);
  const auto append_half = [&](std::uint16_t half) {
    out.push_back(static_cast<std::byte>(half & 0xFFU));
    out.push_back(static_cast<std::byte>(half >> 8U));
  };
  append_half(scale);
  if (has_minimum) append_half(minimum);
  const auto code = [&](int i) {
    if (scale == 0) return 0;
    const float offset = has_minimum ? float_of(minimum) : 0.0F;
    const auto value = static_cast<int>(std::nearbyint((x[i] - offset) / float_of(scale)));
    if (type == GgmlType::kQ8_0) return std::clamp(value, -127, 127);
    return has_minimum ? std::clamp(value, 0, 15) : std::clamp(value + 8, 0, 15);
  };
  if (type == GgmlType::kQ8_0) {
    for (int i = 0; i < 32; ++i) out.push_back(static_cast<std::byte>(code(i)));
  } else {
    for (int i = 0; i < 16; ++i) out.push_back(static_cast<std::byte>(code(i) | code(i + 16) << 4));
  }
}

/// Replaces a float32 matrix by blocks of `type`; a width that blocks do not fill stays as it is.
void quantize(TestModel& model, WeightMatrix& matrix, GgmlType type) {
  if (matrix.cols % 32 != 0) return;
  std::vector<std::byte> blocks;
  const auto* values = reinterpret_cast<const float*>(matrix.data);
  for (std::size_t i = 0; i < std::size_t{matrix.rows} * matrix.cols; i += 32) {
    append_block(values + i, type, blocks);
  }
  model.blocks.push_back(std::move(blocks));
  matrix.type = type;
  matrix.data = model.blocks.back().data();
  matrix.row_bytes = model.blocks.back().size() / matrix.rows;
}

}  // namespace

std::unique_ptr<TestModel> load_model(const std::string& path, const std::string& sha256) {
  const std::string found = kvasir::test::sha256_of_file(path);
  if (found.empty()) {
    throw std::runtime_error("no test model at " + path +
                             "; tests/run.sh fetches it, KVASIR_TEST_MODEL names another place");
  }
  if (!sha256.empty() && found != sha256) {
    throw std::runtime_error(path + " has SHA-256 " + found + ", the golden data are of " + sha256);
  }
  auto model = std::make_unique<TestModel>();
  auto file = GgufFile::open(path);
  if (!file) throw std::runtime_error(file.error().message);
  model->file = std::move(*file);
  auto config = read_model_config(*model->file);
  if (!config) throw std::runtime_error(config.error().message);
  model->config = std::move(*config);
  auto weights = read_weights(*model->file, model->config);
  if (!weights) throw std::runtime_error(weights.error().message);
  model->weights = std::move(*weights);
  return model;
}

const TestModel& smollm2() {
  static const std::unique_ptr<TestModel> model = load_model(smollm2_path(), kSmolLm2Sha256);
  return *model;
}

std::unique_ptr<TestModel> load_gemma3() {
  const char* path = std::getenv("KVASIR_TEST_GEMMA");
  return path == nullptr || *path == '\0' ? nullptr : load_model(path, kGemma3Sha256);
}

const TestModel* gemma3() {
  static const std::unique_ptr<TestModel> model = load_gemma3();
  return model.get();
}

std::unique_ptr<TestModel> make_tiny_model(const TinyShape& shape, std::uint64_t seed) {
  auto model = std::make_unique<TestModel>();
  model->config = tiny_config(shape);
  WeightMaker make(*model, seed);
  // Scales that keep activations near 1 and logits a few units apart, so that choices are neither
  // certain nor blind.
  const double in_width = 2.0 / std::sqrt(shape.width);
  const std::uint32_t query_width = shape.num_heads * shape.head_dim;
  const std::uint32_t kv_width = shape.num_kv_heads * shape.head_dim;
  const FamilyTraits& family = family_traits(shape.family);
  const bool biased = shape.family == ModelFamily::kQwen2;
  ModelWeights& weights = model->weights;
  weights.token_embedding = make.matrix(shape.vocab_size, shape.width, 1.0);
  for (std::uint32_t i = 0; i < shape.num_layers; ++i) {
    LayerWeights layer;
    layer.attention_norm = make.values(shape.width, 1.0, 0.5);
    layer.query = make.matrix(query_width, shape.width, in_width);
    layer.key = make.matrix(kv_width, shape.width, in_width);
    layer.value = make.matrix(kv_width, shape.width, in_width);
    if (biased) {
      layer.query_bias = make.values(query_width, 0.0, 0.5);
      layer.key_bias = make.values(kv_width, 0.0, 0.5);
      layer.value_bias = make.values(kv_width, 0.0, 0.5);
    }
    if (family.has_head_norms) {
      layer.query_norm = make.values(shape.head_dim, 1.0, 0.5);
      layer.key_norm = make.values(shape.head_dim, 1.0, 0.5);
    }
    if (family.has_post_norms) {
      layer.post_attention_norm = make.values(shape.width, 1.0, 0.5);
      layer.post_ffn_norm = make.values(shape.width, 1.0, 0.5);
    }
    layer.attention_output = make.matrix(shape.width, query_width, 2.0 / std::sqrt(query_width));
    layer.ffn_norm = make.values(shape.width, 1.0, 0.5);
    layer.ffn_gate = make.matrix(shape.ffn_width, shape.width, in_width);
    layer.ffn_up = make.matrix(shape.ffn_width, shape.width, in_width);
    layer.ffn_down = make.matrix(shape.width, shape.ffn_width, 2.0 / std::sqrt(shape.ffn_width));
    weights.layers.push_back(std::move(layer));
  }
  weights.output_norm = make.values(shape.width, 1.0, 0.5);
  weights.output_head = make.matrix(shape.vocab_size, shape.width, in_width);
  return model;
}

std::unique_ptr<TestModel> packed_model(const TestModel& model) {
  auto packed = std::make_unique<TestModel>();
  packed->config = model.config;
  packed->weights = pack_weights(model.weights, Activations::kInt8, 2, nullptr);
  return packed;
}

std::unique_ptr<TestModel> make_tiny_int8_model(const TinyShape& shape, std::uint64_t seed) {
  const auto model = make_tiny_model(shape, seed);
  const GgmlType types[] = {GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ8_0};
  std::size_t next = 0;
  for (LayerWeights& layer : model->weights.layers) {
    for (WeightMatrix* matrix : {&layer.query, &layer.key, &layer.value, &layer.attention_output,
                                 &layer.ffn_gate, &layer.ffn_up, &layer.ffn_down}) {
      quantize(*model, *matrix, types[next++ % std::size(types)]);
    }
  }
  quantize(*model, model->weights.output_head, GgmlType::kQ8_0);
  quantize(*model, model->weights.token_embedding, GgmlType::kQ8_0);
  return packed_model(*model);
}

const TestModel& smollm2_int8() {
  static const std::unique_ptr<TestModel> model = packed_model(smollm2());
  return *model;
}

std::string golden_path(const std::string& name) {
  return std::string(KVASIR_SOURCE_DIR) + "/tests/golden/logits/" + name;
}

}  // namespace kvasir::runtime::test
