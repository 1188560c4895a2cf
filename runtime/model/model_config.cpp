#include "runtime/model/model_config.h"

#include "runtime/model/layer_kinds.h"
#include "runtime/model/metadata_reader.h"
#include "runtime/model/printable.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace kvasir::runtime {
namespace {

// Sanity bounds, several times what published models have; they keep every later product inside 64
// bits.
constexpr std::uint64_t kMaxLayers = 1024;
constexpr std::uint64_t kMaxWidth = 65'536;
constexpr std::uint64_t kMaxFfnWidth = 1'048'576;
constexpr std::uint64_t kMaxHeads = 1024;
constexpr std::uint64_t kMaxHeadDim = 512;
constexpr std::uint64_t kMaxVocab = 4'194'304;
constexpr std::uint64_t kMaxContext = 1ULL << 30;

// Keys below "<architecture>." that are read here, in layer_kinds or in rope_config, or that only
// inform.
constexpr std::array<std::string_view, 30> kKnownKeys{
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.finetuned",  // says how the scaling came about
    "tensor_data_layout",      // says where the rows' order came from
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.freq_base_swa",
    "attention.causal",
    "expert_count",
    "expert_used_count",
    "use_parallel_residual",
};

const FamilyTraits& read_family(const MetadataReader& reader) {
  const std::optional<std::string_view> architecture = reader.text("general.architecture");
  if (!architecture) {
    reader.refuse("general.architecture", "is missing");
  }
  std::string known;
  for (const FamilyTraits& family : all_families()) {
    if (family.architecture == *architecture) return family;
    known += known.empty() ? "\"" : ", \"";
    known += std::string(family.architecture) + "\"";
  }
  reader.refuse("general.architecture",
                "is \"" + printable(*architecture) + "\", this build runs " + known);
}

void refuse_unless_model(const MetadataReader& reader) {
  if (const auto type = reader.text("general.type"); type && *type != "model") {
    reader.refuse("general.type", "is \"" + printable(*type) + "\", only \"model\" can be served");
  }
  if (const auto parts = reader.unsigned_integer("split.count"); parts && *parts > 1) {
    reader.refuse("split.count", "is " + std::to_string(*parts) +
                                     ": a model in several files has to be merged first");
  }
  if (const auto version = reader.unsigned_integer("general.quantization_version");
      version && *version != 2) {
    reader.refuse("general.quantization_version",
                  "is " + std::to_string(*version) + ", this build reads version 2");
  }
}

// A key that this build does not know could change what the model computes.
void refuse_unknown_keys(const MetadataReader& reader, const GgufFile& file,
                         const std::string& architecture) {
  const std::string prefix = architecture + '.';
  for (const auto& [key, value] : file.metadata()) {
    if (key.compare(0, prefix.size(), prefix) != 0) {
      continue;
    }
    const std::string_view rest = std::string_view(key).substr(prefix.size());
    if (std::find(kKnownKeys.begin(), kKnownKeys.end(), rest) == kKnownKeys.end()) {
      reader.refuse(key, "is not known to this build for architecture " + architecture +
                             " and could change what the model computes");
    }
  }
}

// Features whose keys are known, and which are served at their neutral value only.
void refuse_features(const MetadataReader& reader) {
  for (const char* name : {"expert_count", "expert_used_count"}) {
    if (const auto experts = reader.unsigned_integer(reader.key(name)); experts && *experts != 0) {
      reader.refuse(reader.key(name),
                    "is " + std::to_string(*experts) + ": mixtures of experts are not supported");
    }
  }
  if (const auto causal = reader.boolean(reader.key("attention.causal")); causal && !*causal) {
    reader.refuse(reader.key("attention.causal"), "is false: only causal models can be served");
  }
  if (const auto parallel = reader.boolean(reader.key("use_parallel_residual"));
      parallel && *parallel) {
    reader.refuse(reader.key("use_parallel_residual"), "is true, which is not supported");
  }
}

void read_widths(const MetadataReader& reader, ModelConfig& config) {
  config.num_layers = reader.required_size("block_count", kMaxLayers);
  config.width = reader.required_size("embedding_length", kMaxWidth);
  config.ffn_width = reader.required_size("feed_forward_length", kMaxFfnWidth);
  config.context_tokens = reader.required_size("context_length", kMaxContext);
}

void read_heads(const MetadataReader& reader, ModelConfig& config) {
  config.num_heads = reader.required_size("attention.head_count", kMaxHeads);
  config.num_kv_heads =
      reader.optional_size("attention.head_count_kv", kMaxHeads).value_or(config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    reader.refuse(reader.key("attention.head_count_kv"),
                  "is " + std::to_string(config.num_kv_heads) + ", which does not divide the " +
                      std::to_string(config.num_heads) + " heads");
  }
  const std::string length_key = reader.key("attention.key_length");
  if (const auto length = reader.optional_size("attention.key_length", kMaxHeadDim)) {
    config.head_dim = *length;
  } else if (config.width % config.num_heads != 0) {
    reader.refuse(length_key, "is missing, and the width " + std::to_string(config.width) +
                                  " is no multiple of the " + std::to_string(config.num_heads) +
                                  " heads");
  } else {
    config.head_dim = config.width / config.num_heads;
  }
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim) {
    reader.refuse(length_key, "gives heads of " + std::to_string(config.head_dim) +
                                  " dimensions, even numbers up to " + std::to_string(kMaxHeadDim) +
                                  " are allowed");
  }
  if (const auto length = reader.optional_size("attention.value_length", kMaxHeadDim);
      length && *length != config.head_dim) {
    reader.refuse(reader.key("attention.value_length"), "is " + std::to_string(*length) +
                                                            ", it has to equal the key length " +
                                                            std::to_string(config.head_dim));
  }
}

void read_epsilon(const MetadataReader& reader, ModelConfig& config) {
  const std::string key = reader.key("attention.layer_norm_rms_epsilon");
  const std::optional<double> epsilon = reader.number(key);
  if (!epsilon) {
    reader.refuse(key, "is missing");
  }
  if (!(*epsilon > 0.0 && *epsilon < 1.0)) {
    reader.refuse(key, "is " + std::to_string(*epsilon) + ", it has to be between 0 and 1");
  }
  config.rms_epsilon = static_cast<float>(*epsilon);
}

// The head's rows are the width of the logits; the tokenizer may know fewer pieces (padding), never
// more.
void read_vocabulary(const MetadataReader& reader, const GgufFile& file, ModelConfig& config) {
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) {
    reader.refuse_tensor("token_embd.weight", "is missing");
  }
  if (embedding->dims.size() != 2 || embedding->dims[1] > kMaxVocab) {
    reader.refuse_tensor("token_embd.weight",
                         "has to be a matrix of at most " + std::to_string(kMaxVocab) + " rows");
  }
  config.vocab_size = static_cast<std::uint32_t>(embedding->dims[1]);
  config.tied_head = file.find_tensor("output.weight") == nullptr;
  if (const auto size = reader.optional_size("vocab_size", kMaxVocab);
      size && *size != config.vocab_size) {
    reader.refuse(reader.key("vocab_size"), "is " + std::to_string(*size) +
                                                ", but token_embd.weight has " +
                                                std::to_string(config.vocab_size) + " rows");
  }
  const GgufValue* tokens = file.find("tokenizer.ggml.tokens");
  const auto* pieces = tokens == nullptr ? nullptr : std::get_if<std::vector<std::string>>(tokens);
  if (pieces != nullptr && pieces->size() > config.vocab_size) {
    reader.refuse("tokenizer.ggml.tokens", "has " + std::to_string(pieces->size()) +
                                               " pieces, but token_embd.weight has " +
                                               std::to_string(config.vocab_size) + " rows");
  }
}

std::string model_name(const MetadataReader& reader, const GgufFile& file) {
  const std::optional<std::string_view> name = reader.text("general.name");
  if (name && !name->empty()) {
    return std::string(*name);
  }
  return std::filesystem::path(file.path()).stem().string();
}

ModelConfig read_all(const GgufFile& file) {
  ModelConfig config;
  const FamilyTraits& family = read_family(MetadataReader(file, ""));
  config.architecture = std::string(family.architecture);
  config.family = family.family;
  const MetadataReader reader(file, config.architecture);
  refuse_unless_model(reader);
  refuse_unknown_keys(reader, file, config.architecture);
  config.name = model_name(reader, file);
  read_widths(reader, config);
  refuse_features(reader);
  read_heads(reader, config);
  read_epsilon(reader, config);
  read_vocabulary(reader, file, config);
  read_layer_kinds(reader, file, config);
  // The largest Gemma 3 takes its heads for width / heads wide. No key of its file says so, only
  // the number of layers tells it from the others.
  if (config.family == ModelFamily::kGemma3 && config.num_layers == 62) {
    config.score_dims = config.width / config.num_heads;
  }
  return config;
}

}  // namespace

kvcache::KvGeometry ModelConfig::kv_geometry(kvcache::KvType type,
                                             std::uint32_t block_tokens) const {
  kvcache::KvGeometry geometry;
  geometry.type = type;
  geometry.block_tokens = block_tokens;
  std::vector<std::uint8_t> group_of_kind;  // [layer_kinds]
  for (const LayerKind& kind : layer_kinds) {
    const auto same = std::ranges::find(geometry.groups, kind.window_tokens,
                                        &kvcache::KvLayerGroup::window_tokens);
    group_of_kind.push_back(static_cast<std::uint8_t>(same - geometry.groups.begin()));
    if (same != geometry.groups.end()) continue;
    geometry.groups.push_back({0, num_kv_heads, head_dim, kind.window_tokens});
  }
  for (std::uint32_t layer = 0; layer < num_layers; ++layer) {
    const std::uint8_t group = group_of_kind[kind_index(layer)];
    ++geometry.groups[group].num_layers;
    if (geometry.groups.size() > 1) geometry.group_of_layer.push_back(group);
  }
  return geometry;
}

float ModelConfig::attention_scale() const {
  return static_cast<float>(
      1.0 / std::sqrt(static_cast<double>(score_dims == 0 ? head_dim : score_dims)));
}

float ModelConfig::embedding_scale() const {
  if (!family_traits(family).scales_embedding) return 1.0F;
  return static_cast<float>(std::sqrt(static_cast<double>(width)));
}

Result<ModelConfig> read_model_config(const GgufFile& file) {
  try {
    return read_all(file);
  } catch (const MetadataRefused& refused) {
    return fail(ErrorCode::kInvalidModelFile, refused.message);
  }
}

}  // namespace kvasir::runtime
