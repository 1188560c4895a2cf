// Mean negative log-likelihood over real text, which sees small errors at every position that a few
// recorded logits would miss. KVASIR_TEST_LONG=1 adds one pass over the whole text.
#include "runtime/kernels/dispatch.h"
#include "tests/runtime/decoder/run_sequences.h"
#include "tests/runtime/decoder/test_models.h"
#include "tests/support/catch.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <vector>

using namespace kvasir;
using namespace kvasir::runtime;
using namespace kvasir::runtime::test;

namespace {

nlohmann::json read_golden() {
  std::ifstream file(golden_path("smollm2-perplexity.json"));
  REQUIRE(file);
  return nlohmann::json::parse(file);
}

bool long_tests() { return std::getenv("KVASIR_TEST_LONG") != nullptr; }

double negative_log_likelihood(const std::vector<float>& logits, TokenId target) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return max + std::log(sum) - static_cast<double>(logits[target]);
}

/// Of targets [first_target, ids.size() - 1): target i is ids[i + 1], predicted at position i. In
/// chunks, so that few logits are held at a time.
std::vector<double> score(SequenceRunner& runner, const std::vector<TokenId>& ids,
                          std::uint32_t first_target) {
  constexpr std::uint32_t kChunk = 128;
  const auto num_targets = static_cast<std::uint32_t>(ids.size()) - 1;
  TestSequence sequence = make_sequence(
      greedy_request(ids), runner.blocks(static_cast<std::uint32_t>(ids.size()), 0), false);
  std::vector<double> nll;
  while (sequence.num_computed < num_targets) {
    const std::uint32_t first = sequence.num_computed;
    const std::uint32_t end = first < first_target ? first_target : num_targets;
    const std::uint32_t tokens = std::min(kChunk, end - first);
    sequence.keep_all_logits = first >= first_target;
    const ChunkOrder order{&sequence, tokens};
    runner.step({&order, 1});
    for (std::uint32_t i = first; sequence.keep_all_logits && i < first + tokens; ++i) {
      nll.push_back(negative_log_likelihood(sequence.logits[i], ids[i + 1]));
      sequence.logits[i] = {};
    }
  }
  return nll;
}

double mean(const std::vector<double>& values, std::size_t begin, std::size_t end) {
  double sum = 0.0;
  for (std::size_t i = begin; i < end; ++i) sum += values[i];
  return sum / static_cast<double>(end - begin);
}

RunOptions fast_options(kvcache::KvType type, std::uint32_t num_tokens) {
  RunOptions options;
  options.isa = best_isa();
  options.kv_type = type;
  options.num_threads = 2;
  options.num_blocks = num_tokens / options.block_tokens + 1;
  return options;
}

constexpr double kTolerance = 1e-4;
constexpr double kInt8Tolerance = 0.015;

/// The second halves of the eight windows, in float32 and 16-bit caches.
void check_windows(const TestModel& model, kvcache::KvType type, double window_tolerance,
                   double mean_tolerance) {
  const nlohmann::json golden = read_golden();
  const auto ids = golden["ids"].get<std::vector<TokenId>>();
  const std::size_t num_windows = golden["windows"].size();
  REQUIRE(num_windows == 8);
  SequenceRunner runner(model, fast_options(type, 512));
  double sum = 0.0;
  for (std::size_t w = 0; w < num_windows; ++w) {
    const nlohmann::json& window = golden["windows"][w];
    const auto begin = ids.begin() + window["start"].get<std::ptrdiff_t>();
    const auto nll = score(runner, {begin, begin + 512}, 256);
    REQUIRE(nll.size() == 255);
    const double second_half = mean(nll, 0, nll.size());
    INFO("window " << w << ": " << second_half);
    CHECK(std::abs(second_half - window["nll_mean_second_half"].get<double>()) <= window_tolerance);
    sum += second_half;
  }
  INFO("mean " << sum / 8);
  CHECK(std::abs(sum / 8 - golden["nll_mean_second_half"].get<double>()) <= mean_tolerance);
}

}  // namespace

TEST_CASE("Decoder: the perplexity of windows of text is the reference's",
          "[runtime][smollm2][golden]") {
  check_windows(smollm2(), kvcache::KvType::kF32, kTolerance, kTolerance);
}

TEST_CASE("Decoder: int8 activations move the perplexity by less than rounding explains",
          "[runtime][smollm2][golden]") {
  // One window of 255 targets scatters more than the mean of eight.
  check_windows(smollm2_int8(), kvcache::KvType::kF16, 3 * kInt8Tolerance, kInt8Tolerance);
}

TEST_CASE("Decoder: the perplexity of one long pass is the reference's in every part",
          "[runtime][smollm2][golden][slow]") {
  if (!long_tests()) {
    WARN("skipped: KVASIR_TEST_LONG is not set");
    return;
  }
  const nlohmann::json golden = read_golden();
  const nlohmann::json& expected = golden["long"];
  auto ids = golden["ids"].get<std::vector<TokenId>>();
  ids.resize(expected["tokens"].get<std::size_t>());
  const auto bucket = expected["bucket"].get<std::size_t>();
  SequenceRunner runner(
      smollm2(), fast_options(kvcache::KvType::kF32, static_cast<std::uint32_t>(ids.size())));
  const auto nll = score(runner, ids, 0);
  REQUIRE(nll.size() == ids.size() - 1);
  std::size_t compared = 0;
  for (std::size_t b = 0; b < expected["nll_mean_per_bucket"].size(); ++b) {
    const std::size_t end = std::min(nll.size(), (b + 1) * bucket);
    const double actual = mean(nll, b * bucket, end);
    INFO("targets from " << b * bucket << ": " << actual);
    CHECK(std::abs(actual - expected["nll_mean_per_bucket"][b].get<double>()) <= 2 * kTolerance);
    ++compared;
  }
  CHECK(compared == 16);
  CHECK(std::abs(mean(nll, 0, nll.size()) - expected["nll_mean"].get<double>()) <= kTolerance);
}
