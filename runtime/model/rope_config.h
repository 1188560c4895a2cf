// Rotary embedding as a model file describes it, folded into one inverse frequency for each pair
// and one magnitude. Rotating is the kernels' business.
#pragma once

#include "runtime/model/gguf_reader.h"
#include "runtime/model/metadata_reader.h"
#include "runtime/model/model_config.h"

#include <cstdint>

namespace kvasir::runtime {

/// What the rest of the configuration says about the heads to rotate.
struct RopeShape {
  RopePairs pairs = RopePairs::kAdjacent;
  std::uint32_t head_dim = 0;
  std::uint32_t context_tokens = 0;
};

/// Scaling types: none, linear (Chen et al. 2023, position interpolation), yarn (Peng et al. 2023,
/// "YaRN: Efficient Context Window Extension of Large Language Models", section 3), and the factors
/// of Llama 3.1 in `rope_freqs.weight`. Throws MetadataRefused.
[[nodiscard]] RopeConfig read_rope_config(const MetadataReader& reader, const GgufFile& file,
                                          const RopeShape& shape);

/// Without any scaling.
[[nodiscard]] RopeConfig plain_rope_config(const RopeShape& shape, std::uint32_t dims, double base);

}  // namespace kvasir::runtime
