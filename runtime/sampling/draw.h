// The random choice from a row of logits: temperature, top-k, min-p, top-p and the draw (steps 7
// and 8 of sampler.h). What comes before, and where the random number is from, is the sampler's
// business.
#pragma once

#include "core/request.h"
#include "runtime/sampling/candidates.h"
#include "runtime/sampling/row_scan.h"

#include <array>
#include <vector>

namespace kvasir::runtime {

/// NaN and -inf become -inf, +inf the largest float: differences of two logits are then never NaN.
[[nodiscard]] float bounded(float logit);

/// Working memory of draw(), sized once.
struct DrawScratch {
  explicit DrawScratch(std::uint32_t vocab_size);
  [[nodiscard]] static std::size_t bytes(std::uint32_t vocab_size);
  CandidateBuffer candidates;
  std::vector<double> range_sums;            // [num_ranges]
  std::array<float, kVocabRange> weights{};  // of a range or of so many candidates
};

/// Draws from the row that was scanned last. `best` is its largest bounded logit, above -inf;
/// `uniform` is in [0, 1). Nothing is allocated.
[[nodiscard]] TokenId draw(const KernelTable& kernels, RowScan& row, float best,
                           const SamplingParams& sampling, double uniform, DrawScratch& scratch);

}  // namespace kvasir::runtime
