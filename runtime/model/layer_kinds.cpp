#include "runtime/model/layer_kinds.h"

#include "runtime/model/rope_config.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace kvasir::runtime {
namespace {

constexpr const char* kWindowKey = "attention.sliding_window";
constexpr const char* kPatternKey = "attention.sliding_window_pattern";

/// Every `period`-th layer sees all positions; 0: none does.
std::vector<bool> windowed_by_period(std::uint32_t num_layers, std::uint64_t period) {
  std::vector<bool> windowed(num_layers);
  for (std::uint32_t layer = 0; layer < num_layers; ++layer) {
    windowed[layer] = period == 0 || (layer + 1) % period != 0;
  }
  return windowed;
}

/// [num_layers]: whether a layer has the window. A file gives a period, or a truth value for each
/// layer, or leaves it to the family.
std::vector<bool> read_windowed_layers(const MetadataReader& reader, const GgufFile& file,
                                       const ModelConfig& config) {
  const std::string key = reader.key(kPatternKey);
  const GgufValue* value = file.find(key);
  if (value == nullptr) {
    return windowed_by_period(config.num_layers, family_traits(config.family).full_layer_period);
  }
  if (const auto* listed = std::get_if<std::vector<bool>>(value)) {
    if (listed->size() < config.num_layers) {
      reader.refuse(key, "has " + std::to_string(listed->size()) + " entries for " +
                             std::to_string(config.num_layers) + " layers");
    }
    return {listed->begin(), listed->begin() + config.num_layers};
  }
  return windowed_by_period(config.num_layers, *reader.unsigned_integer(key));
}

/// The window of layers that have one; 0 for a file without. One that no sequence outgrows is none
/// for attention, though its layers may still rotate in their own way.
std::optional<std::uint32_t> read_window(const MetadataReader& reader, const ModelConfig& config) {
  const auto window = reader.unsigned_integer(reader.key(kWindowKey));
  if (!window || *window == 0) return std::nullopt;
  return *window >= config.context_tokens ? 0 : static_cast<std::uint32_t>(*window);
}

RopeConfig window_rope(const MetadataReader& reader, const RopeShape& shape, const RopeConfig& full,
                       double family_base) {
  const std::string key = reader.key("rope.freq_base_swa");
  const std::optional<double> base = reader.number(key);
  if (base && !(*base > 1.0)) {
    reader.refuse(key, "is " + std::to_string(*base) + ", it has to be above 1");
  }
  if (!base && family_base == 0.0) return full;
  return plain_rope_config(shape, full.dims, base.value_or(family_base));
}

}  // namespace

void read_layer_kinds(const MetadataReader& reader, const GgufFile& file, ModelConfig& config) {
  const FamilyTraits& family = family_traits(config.family);
  const RopeShape shape{family.pairs, config.head_dim, config.context_tokens};
  LayerKind full;
  full.rope = read_rope_config(reader, file, shape);
  const std::optional<std::uint32_t> window = read_window(reader, config);
  std::vector<bool> windowed(config.num_layers, false);
  if (window) windowed = read_windowed_layers(reader, file, config);

  LayerKind local;
  local.window_tokens = window.value_or(0);
  local.rope = window_rope(reader, shape, full.rope, family.window_rope_base);
  const auto num_windowed = std::count(windowed.begin(), windowed.end(), true);
  config.kind_of_layer.clear();
  if (num_windowed == 0) {
    config.layer_kinds = {full};
  } else if (num_windowed == static_cast<std::ptrdiff_t>(config.num_layers)) {
    config.layer_kinds = {local};
  } else {
    config.layer_kinds = {full, local};
    config.kind_of_layer.assign(windowed.begin(), windowed.end());
  }
}

}  // namespace kvasir::runtime
