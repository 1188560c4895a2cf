// What sets the model families apart: each is one row of a table, read by who reads the file and by
// the one decoder that runs them all. What a file itself says (sizes, windows, biases) is not here.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace kvasir::runtime {

enum class ModelFamily : std::uint8_t { kLlama, kQwen2, kGemma3 };

/// Which dimensions of a head rotate together.
enum class RopePairs : std::uint8_t {
  kAdjacent,  // (2i, 2i + 1)
  kHalves,    // (i, i + rope_dims / 2)
};

/// What the feed-forward does to its gate.
enum class Activation : std::uint8_t {
  kSilu,      // x / (1 + exp(-x))
  kGeluTanh,  // GELU, by its tanh approximation
};

struct FamilyTraits {
  ModelFamily family = ModelFamily::kLlama;
  std::string_view architecture;  // general.architecture
  RopePairs pairs = RopePairs::kAdjacent;
  Activation activation = Activation::kSilu;
  bool scales_embedding = false;  // by sqrt(width)
  bool has_head_norms = false;    // each head of q and k, before it is rotated
  bool has_post_norms = false;    // of what attention and feed-forward put out, before it is added
  /// Of a file with a window that does not say which layers have it: every so manieth layer sees
  /// all positions. 0: none does.
  std::uint32_t full_layer_period = 0;
  /// Rotary base of layers with a window, which then have no rope scaling, unless the file names
  /// another. 0: they rotate as all layers do.
  double window_rope_base = 0.0;
};

[[nodiscard]] std::span<const FamilyTraits> all_families();
[[nodiscard]] const FamilyTraits& family_traits(ModelFamily family);

}  // namespace kvasir::runtime
