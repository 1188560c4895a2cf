// Gemma 3 270M against an independent reference: windows of 512 in five of six layers, norms of
// heads and behind blocks, GELU. Two prompts are longer than the window. What lies behind it is
// overwritten with NaN as the sequences go on (run_sequences). The tolerances are those of
// tests/golden/logits/README.md.
#include "runtime/kernels/dispatch.h"
#include "tests/runtime/decoder/golden_rows.h"
#include "tests/support/catch.h"

using namespace kvasir::runtime;
using namespace kvasir::runtime::test;
using kvasir::kvcache::KvType;

namespace {

constexpr const char* kGolden = "gemma3-logits.jsonl";
constexpr const char* kSkipped = "skipped: KVASIR_TEST_GEMMA names no file";
constexpr double kF32Tolerance = 2e-3;
constexpr double kF16Tolerance = 0.06;
constexpr double kF16MeanTolerance = 5e-3;
constexpr double kInt8MeanTolerance = 0.1208;  // 1.15 times what another int8 engine gets here
constexpr double kInt8Margin = 0.7;
// Recorded positions of the prompts, and steps of their continuations.
constexpr std::size_t kPositions = 6 + 1 + 4 * 8 + 2 * 13, kSteps = 8 * 32;

RunOptions fast_options(KvType type) {
  RunOptions options;
  options.isa = best_isa();
  options.kv_type = type;
  options.num_threads = 2;
  options.block_tokens = 32;
  return options;
}

}  // namespace

TEST_CASE("Decoder: Gemma 3 with an f32 cache matches the reference logits and greedy tokens",
          "[runtime][golden][gemma][slow]") {
  const TestModel* model = gemma3();
  if (model == nullptr) {
    WARN(kSkipped);
    return;
  }
  const GoldenReport report =
      compare_with_golden(*model, fast_options(KvType::kF32), kGolden, kF32Tolerance);
  INFO(describe(report));
  CHECK(report.worst_logprob_difference <= kF32Tolerance);
  CHECK(report.num_tops_wrong == 0);
  CHECK(report.num_free_steps_wrong == 0);
  CHECK(report.num_tops + report.num_tops_skipped == kPositions + kSteps);
  CHECK(report.num_tops_skipped <= 3);
  CHECK(report.num_free_steps + report.num_free_steps_skipped == kSteps);
  CHECK(report.num_free_steps_skipped == 0);
  CHECK(report.num_free_rows_equal == 8);
}

TEST_CASE("Decoder: Gemma 3 with 16-bit caches matches the reference within their rounding",
          "[runtime][golden][gemma][slow]") {
  const TestModel* model = gemma3();
  if (model == nullptr) {
    WARN(kSkipped);
    return;
  }
  const GoldenReport report =
      compare_with_golden(*model, fast_options(KvType::kF16), kGolden, kF16Tolerance);
  INFO(describe(report));
  CHECK(report.worst_logprob_difference <= kF16Tolerance);
  CHECK(report.mean_logprob_difference() <= kF16MeanTolerance);
  CHECK(report.num_tops_wrong == 0);
  CHECK(report.num_free_steps_wrong == 0);
  CHECK(report.num_tops_skipped <= 30);
}

TEST_CASE("Decoder: Gemma 3 with int8 activations is as near to the reference as rounding allows",
          "[runtime][golden][gemma][slow]") {
  const TestModel* model = gemma3();
  if (model == nullptr) {
    WARN(kSkipped);
    return;
  }
  const auto packed = packed_model(*model);
  const GoldenReport report =
      compare_with_golden(*packed, fast_options(KvType::kF16), kGolden, kInt8Margin);
  INFO(describe(report));
  CHECK(report.mean_top_logprob_difference() <= kInt8MeanTolerance);
  CHECK(report.num_tops_wrong == 0);
  CHECK(report.num_tops >= 120);
  CHECK(report.num_free_steps_wrong == 0);
}

TEST_CASE("Decoder: a window of Gemma 3 that is off by one shows in the logits",
          "[runtime][golden][gemma][slow]") {
  if (gemma3() == nullptr) {
    WARN(kSkipped);
    return;
  }
  for (const std::uint32_t window : {511U, 513U}) {
    const auto model = load_gemma3();
    REQUIRE(model->config.layer_kinds.at(1).window_tokens == 512);
    model->config.layer_kinds[1].window_tokens = window;
    const GoldenReport report =
        compare_with_golden(*model, fast_options(KvType::kF32), kGolden, kF32Tolerance, "long-700");
    INFO("window " << window << ": " << describe(report));
    CHECK(report.worst_logprob_difference > 5.0 * kF32Tolerance);
  }
}
