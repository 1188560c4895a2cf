#include "runtime/model/model_family.h"

#include "core/check.h"

#include <algorithm>
#include <array>

namespace kvasir::runtime {
namespace {

constexpr std::array kFamilies = {
    FamilyTraits{.family = ModelFamily::kLlama, .architecture = "llama"},
    FamilyTraits{
        .family = ModelFamily::kQwen2, .architecture = "qwen2", .pairs = RopePairs::kHalves},
    // Gemma 3 (2025), text only. Norm weights in its files include the 1 that the original adds.
    FamilyTraits{.family = ModelFamily::kGemma3,
                 .architecture = "gemma3",
                 .pairs = RopePairs::kHalves,
                 .activation = Activation::kGeluTanh,
                 .scales_embedding = true,
                 .has_head_norms = true,
                 .has_post_norms = true,
                 .full_layer_period = 6,
                 .window_rope_base = 10'000.0},
};

}  // namespace

std::span<const FamilyTraits> all_families() { return kFamilies; }

const FamilyTraits& family_traits(ModelFamily family) {
  const auto found = std::ranges::find(kFamilies, family, &FamilyTraits::family);
  KVASIR_CHECK(found != kFamilies.end());
  return *found;
}

}  // namespace kvasir::runtime
