#include "tests/runtime/decoder/plain_decoder.h"

#include "core/check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kvasir::runtime::test {
namespace {

using Vector = std::vector<double>;

constexpr double kPi = 3.14159265358979324;

Vector product(const WeightMatrix& matrix, const std::vector<float>& bias, const Vector& x) {
  KVASIR_CHECK(matrix.type == GgmlType::kF32 && matrix.layout == WeightLayout::kRows);
  KVASIR_CHECK(x.size() == matrix.cols);
  const auto* values = reinterpret_cast<const float*>(matrix.data);
  Vector y(matrix.rows);
  for (std::size_t row = 0; row < matrix.rows; ++row) {
    if (!bias.empty()) y[row] = static_cast<double>(bias[row]);
    for (std::size_t col = 0; col < matrix.cols; ++col) {
      y[row] += static_cast<double>(values[row * matrix.cols + col]) * x[col];
    }
  }
  return y;
}

/// Of x[begin, begin + weight.size()), in place; nothing for families without this norm.
void norm(const std::vector<float>& weight, double epsilon, Vector& x, std::size_t begin = 0) {
  if (weight.empty()) return;
  double squares = 0.0;
  for (std::size_t i = 0; i < weight.size(); ++i) squares += x[begin + i] * x[begin + i];
  const double root = std::sqrt(squares / static_cast<double>(weight.size()) + epsilon);
  for (std::size_t i = 0; i < weight.size(); ++i) {
    x[begin + i] *= static_cast<double>(weight[i]) / root;
  }
}

void rotate(const RopeConfig& rope, std::size_t position, Vector& x, std::size_t begin) {
  for (std::size_t i = 0; i < rope.dims / 2; ++i) {
    const bool adjacent = rope.pairs == RopePairs::kAdjacent;
    double& a = x[begin + (adjacent ? 2 * i : i)];
    double& b = x[begin + (adjacent ? 2 * i + 1 : i + rope.dims / 2)];
    const double angle = static_cast<double>(position) * rope.inverse_frequency[i];
    const double cosine = std::cos(angle), sine = std::sin(angle);
    const double turned = a * cosine - b * sine;
    b = b * cosine + a * sine;
    a = turned;
  }
}

double activate(ModelFamily family, double x) {
  if (family != ModelFamily::kGemma3) return x / (1.0 + std::exp(-x));
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / kPi) * (x + 0.044715 * x * x * x)));
}

class PlainDecoder {
 public:
  explicit PlainDecoder(const TestModel& model) : config_(model.config), weights_(model.weights) {}

  std::vector<Vector> logits(const std::vector<TokenId>& tokens) const {
    std::vector<Vector> stream;  // [position][width]
    const double scale = config_.family == ModelFamily::kGemma3
                             ? std::sqrt(static_cast<double>(config_.width))
                             : 1.0;
    const auto* table = reinterpret_cast<const float*>(weights_.token_embedding.data);
    for (const TokenId token : tokens) {
      Vector& x = stream.emplace_back();
      for (std::size_t i = 0; i < config_.width; ++i) {
        x.push_back(scale * static_cast<double>(table[token * config_.width + i]));
      }
    }
    for (std::uint32_t layer = 0; layer < config_.num_layers; ++layer) {
      attention(layer, stream);
      for (Vector& x : stream) feed_forward(weights_.layers[layer], x);
    }
    for (Vector& x : stream) {
      norm(weights_.output_norm, epsilon(), x);
      x = product(weights_.output_head, {}, x);
    }
    return stream;
  }

 private:
  double epsilon() const { return static_cast<double>(config_.rms_epsilon); }

  void attention(std::uint32_t layer, std::vector<Vector>& stream) const {
    const LayerWeights& w = weights_.layers[layer];
    const LayerKind& kind = config_.layer_kinds[config_.kind_index(layer)];
    std::vector<Vector> queries, keys, values;
    for (std::size_t p = 0; p < stream.size(); ++p) {
      Vector x = stream[p];
      norm(w.attention_norm, epsilon(), x);
      queries.push_back(product(w.query, w.query_bias, x));
      keys.push_back(product(w.key, w.key_bias, x));
      values.push_back(product(w.value, w.value_bias, x));
      for (std::size_t at = 0; at < queries[p].size(); at += config_.head_dim) {
        norm(w.query_norm, epsilon(), queries[p], at);
        rotate(kind.rope, p, queries[p], at);
      }
      for (std::size_t at = 0; at < keys[p].size(); at += config_.head_dim) {
        norm(w.key_norm, epsilon(), keys[p], at);
        rotate(kind.rope, p, keys[p], at);
      }
    }
    for (std::size_t p = 0; p < stream.size(); ++p) {
      const std::size_t window = kind.window_tokens;
      const std::size_t first = window == 0 || p < window ? 0 : p + 1 - window;
      Vector y = product(w.attention_output, w.attention_output_bias,
                         attended(queries[p], keys, values, first, p));
      norm(w.post_attention_norm, epsilon(), y);
      for (std::size_t i = 0; i < y.size(); ++i) stream[p][i] += y[i];
    }
  }

  /// Of all heads of one query, over positions first..last.
  Vector attended(const Vector& query, const std::vector<Vector>& keys,
                  const std::vector<Vector>& values, std::size_t first, std::size_t last) const {
    const std::size_t dims = config_.head_dim;
    Vector out(query.size());
    for (std::size_t head = 0; head < config_.num_heads; ++head) {
      const std::size_t q = head * dims;
      const std::size_t kv = head / (config_.num_heads / config_.num_kv_heads) * dims;
      Vector weights(last + 1);
      double sum = 0.0;
      for (std::size_t p = first; p <= last; ++p) {
        double score = 0.0;
        for (std::size_t d = 0; d < dims; ++d) score += query[q + d] * keys[p][kv + d];
        sum += weights[p] = std::exp(score / std::sqrt(static_cast<double>(dims)));
      }
      for (std::size_t p = first; p <= last; ++p) {
        for (std::size_t d = 0; d < dims; ++d) out[q + d] += weights[p] / sum * values[p][kv + d];
      }
    }
    return out;
  }

  void feed_forward(const LayerWeights& w, Vector& x) const {
    Vector normed = x;
    norm(w.ffn_norm, epsilon(), normed);
    Vector gate = product(w.ffn_gate, {}, normed);
    const Vector up = product(w.ffn_up, {}, normed);
    for (std::size_t i = 0; i < gate.size(); ++i) {
      gate[i] = activate(config_.family, gate[i]) * up[i];
    }
    Vector y = product(w.ffn_down, {}, gate);
    norm(w.post_ffn_norm, epsilon(), y);
    for (std::size_t i = 0; i < y.size(); ++i) x[i] += y[i];
  }

  const ModelConfig& config_;
  const ModelWeights& weights_;
};

}  // namespace

std::vector<std::vector<double>> plain_logits(const TestModel& model,
                                              const std::vector<TokenId>& tokens) {
  return PlainDecoder(model).logits(tokens);
}

}  // namespace kvasir::runtime::test
