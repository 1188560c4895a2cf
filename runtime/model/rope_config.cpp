#include "runtime/model/rope_config.h"

#include "runtime/model/printable.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::runtime {
namespace {

constexpr double kDefaultBase = 10'000.0;

double positive_number(const MetadataReader& reader, std::string_view name, double when_missing) {
  const std::string key = reader.key(name);
  const double value = reader.number(key).value_or(when_missing);
  if (!(value > 0.0)) {
    reader.refuse(key, "is " + std::to_string(value) + ", it has to be above 0");
  }
  return value;
}

std::uint32_t read_dims(const MetadataReader& reader, std::uint32_t head_dim) {
  const std::uint32_t dims =
      reader.optional_size("rope.dimension_count", head_dim).value_or(head_dim);
  if (dims % 2 != 0) {
    reader.refuse(reader.key("rope.dimension_count"),
                  "is " + std::to_string(dims) + ", it has to be even");
  }
  return dims;
}

double read_base(const MetadataReader& reader) {
  const double base = positive_number(reader, "rope.freq_base", kDefaultBase);
  if (!(base > 1.0)) {
    reader.refuse(reader.key("rope.freq_base"),
                  "is " + std::to_string(base) + ", it has to be above 1");
  }
  return base;
}

std::vector<double> plain_frequencies(double base, std::uint32_t dims) {
  std::vector<double> frequencies(dims / 2);  // [dims / 2]
  for (std::uint32_t i = 0; i < dims / 2; ++i) {
    frequencies[i] = std::pow(base, -2.0 * i / dims);
  }
  return frequencies;
}

/// The numbers of YaRN; names as in the paper.
struct Yarn {
  double factor = 1.0;           // s
  double original_tokens = 0.0;  // L
  double beta_fast = 32.0;       // rotations over L above which a pair is left as it is
  double beta_slow = 1.0;        // rotations below which it is interpolated by s
};

// The index of the pair (not rounded) that turns `rotations` times over the original context.
double pair_of_rotations(const Yarn& yarn, double rotations, double base, std::uint32_t dims) {
  return dims * std::log(yarn.original_tokens / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(base));
}

// Between `low` and `high` the weight of the unscaled frequency falls linearly from 1 to 0. The
// borders are rounded outwards and kept inside the head as in the authors' code; the paper's ramp
// is over the rotations themselves.
void apply_yarn(const Yarn& yarn, double base, std::uint32_t dims,
                std::vector<double>& frequencies) {
  const double low = std::max(std::floor(pair_of_rotations(yarn, yarn.beta_fast, base, dims)), 0.0);
  const double high =
      std::min(std::ceil(pair_of_rotations(yarn, yarn.beta_slow, base, dims)), dims - 1.0);
  const double width = low == high ? 0.001 : high - low;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
    frequencies[i] = frequencies[i] / yarn.factor * ramp + frequencies[i] * (1.0 - ramp);
  }
}

Yarn read_yarn(const MetadataReader& reader, double factor, std::uint32_t context_tokens) {
  Yarn yarn;
  yarn.factor = factor;
  yarn.original_tokens =
      positive_number(reader, "rope.scaling.original_context_length", context_tokens);
  yarn.beta_fast = positive_number(reader, "rope.scaling.yarn_beta_fast", yarn.beta_fast);
  yarn.beta_slow = positive_number(reader, "rope.scaling.yarn_beta_slow", yarn.beta_slow);
  if (yarn.beta_fast < yarn.beta_slow) {
    reader.refuse(reader.key("rope.scaling.yarn_beta_fast"), "is below yarn_beta_slow");
  }
  const std::string extrapolation_key = reader.key("rope.scaling.yarn_ext_factor");
  if (reader.number(extrapolation_key).value_or(1.0) != 1.0) {
    reader.refuse(extrapolation_key, "has to be 1");
  }
  return yarn;
}

// YaRN's attention factor 0.1 ln(s) + 1 goes into cosine and sine, so that it enters both q and k.
// The files' factors, 1 unless a model was trained with another one, multiply it.
float read_yarn_magnitude(const MetadataReader& reader, double factor) {
  const double base_magnitude = factor > 1.0 ? 0.1 * std::log(factor) + 1.0 : 1.0;
  return static_cast<float>(base_magnitude *
                            positive_number(reader, "rope.scaling.attn_factor", 1.0) *
                            positive_number(reader, "rope.scaling.yarn_attn_factor", 1.0));
}

void refuse_attention_factors(const MetadataReader& reader) {
  for (const char* name : {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"}) {
    if (positive_number(reader, name, 1.0) != 1.0) {
      reader.refuse(reader.key(name),
                    "is not 1, which is supported with rope.scaling.type yarn only");
    }
  }
}

// Llama 3.1 stores the divisor of each pair's frequency instead of the rule that made it.
void apply_stored_factors(const MetadataReader& reader, const GgufTensor& factors,
                          std::vector<double>& frequencies) {
  if (factors.type != GgmlType::kF32 || factors.dims.size() != 1 ||
      factors.dims[0] != frequencies.size()) {
    reader.refuse_tensor(factors.name,
                         "has to be F32 [" + std::to_string(frequencies.size()) + "]");
  }
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    float factor = 0.0F;
    std::memcpy(&factor, factors.data.data() + i * sizeof(float), sizeof(float));
    if (!std::isfinite(factor) || !(factor > 0.0F)) {
      reader.refuse_tensor(factors.name, "has the value " + std::to_string(factor) + " at " +
                                             std::to_string(i) + ", factors have to be above 0");
    }
    frequencies[i] /= factor;
  }
}

std::string read_scaling_type(const MetadataReader& reader) {
  const std::string type_key = reader.key("rope.scaling.type");
  const auto type = reader.text(type_key);
  const bool has_linear_scale = reader.number(reader.key("rope.scale_linear")).value_or(1.0) != 1.0;
  if (!type) {
    return has_linear_scale ? "linear" : "none";
  }
  if (*type != "none" && *type != "linear" && *type != "yarn") {
    reader.refuse(type_key, "is \"" + printable(*type) +
                                "\", this build computes \"none\", \"linear\" and \"yarn\"");
  }
  return std::string(*type);
}

}  // namespace

RopeConfig plain_rope_config(const RopeShape& shape, std::uint32_t dims, double base) {
  RopeConfig rope;
  rope.pairs = shape.pairs;
  rope.dims = dims;
  rope.inverse_frequency = plain_frequencies(base, dims);
  return rope;
}

RopeConfig read_rope_config(const MetadataReader& reader, const GgufFile& file,
                            const RopeShape& shape) {
  const double base = read_base(reader);
  RopeConfig rope = plain_rope_config(shape, read_dims(reader, shape.head_dim), base);

  const std::string scaling = read_scaling_type(reader);
  const double factor = positive_number(reader, "rope.scaling.factor",
                                        positive_number(reader, "rope.scale_linear", 1.0));
  const GgufTensor* stored_factors = file.find_tensor("rope_freqs.weight");
  if (stored_factors != nullptr) {
    if (scaling != "none") {
      reader.refuse(reader.key("rope.scaling.type"),
                    "is \"" + scaling + "\" in a file that also has rope_freqs.weight");
    }
    apply_stored_factors(reader, *stored_factors, rope.inverse_frequency);
  }
  if (scaling == "yarn") {
    apply_yarn(read_yarn(reader, factor, shape.context_tokens), base, rope.dims,
               rope.inverse_frequency);
    rope.magnitude = read_yarn_magnitude(reader, factor);
    return rope;
  }
  refuse_attention_factors(reader);
  if (scaling == "linear") {
    for (double& frequency : rope.inverse_frequency) {
      frequency /= factor;
    }
  }
  return rope;
}

}  // namespace kvasir::runtime
