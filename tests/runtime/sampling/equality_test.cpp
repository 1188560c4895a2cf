// The sampler against the plain one, over random rows and requests: every shape of logits that
// makes a shortcut take another way, every parameter, every instruction set.
#include "core/rng.h"
#include "runtime/kernels/dispatch.h"
#include "runtime/sampling/candidates.h"
#include "runtime/sampling/sampler.h"
#include "tests/runtime/sampling/plain_sampler.h"
#include "tests/support/catch.h"

#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <vector>

using namespace kvasir;
using namespace kvasir::runtime;
using namespace kvasir::runtime::testing;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

/// A stream of numbers, each a function of (seed, place in the stream).
class Chance {
 public:
  explicit Chance(std::uint64_t seed) : seed_(seed) {}
  double uniform() { return uniform01({.seed = seed_, .position = position_++}); }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(uniform() * double(n)); }
  float of(std::initializer_list<float> values) { return values.begin()[below(values.size())]; }

 private:
  std::uint64_t seed_;
  std::uint64_t position_ = 0;
};

std::vector<float> random_logits(Chance& chance, std::uint32_t size) {
  const std::size_t shape = chance.below(8);
  const double spread = std::pow(10.0, chance.uniform() * 4.0 - 2.0);
  std::vector<float> logits(size);
  for (std::uint32_t i = 0; i < size; ++i) {
    const double u = chance.uniform();
    const std::array<double, 8> shapes = {
        0.5,                                     // all equal
        (u + chance.uniform() - 1.0) * spread,   // a bell
        std::floor(u * 5.0),                     // many ties
        18.0 - 2.0 * std::log(1.0 + u * size),   // a model's
        1.0 + u * 1e-6,                          // nearly equal
        static_cast<double>(i) * 1e-3,           // the heaviest all in one place
        static_cast<double>(i) * -1e-3,          // likewise
        i % 1024 == 17 ? 40.0 + u : -40.0 * u};  // some far above the rest
    logits[i] = static_cast<float>(shapes[shape]);
  }
  if (chance.below(3) == 0) {
    for (std::size_t n = chance.below(6); n > 0; --n) {
      logits[chance.below(size)] =
          chance.of({kNan, -kInf, kInf, kLargest, -kLargest, 0.0F, -0.0F, 1e-45F, -1e-45F});
    }
  }
  if (chance.below(50) == 0) {
    for (float& logit : logits) logit = chance.of({kNan, -kInf});
  }
  return logits;
}

Request random_request(Chance& chance, std::uint32_t size) {
  Request request;
  SamplingParams& s = request.sampling;
  const auto token = [&] { return static_cast<TokenId>(chance.below(size)); };
  s.temperature = chance.of({0.0F, 1.0F, 0.8F, 0.1F, 1e-3F, 1.7F, 2.0F, 1e6F});
  s.top_k = static_cast<std::uint32_t>(chance.of(
      {0.0F, 0.0F, 0.0F, 1.0F, 2.0F, 3.0F, 20.0F, 40.0F, 100.0F, 500.0F, 1000.0F, 3000.0F, 2e4F}));
  s.top_p = chance.of({1.0F, 1.0F, 0.95F, 0.9F, 0.5F, 0.05F, 0.99F, 0.9999999F, 1e-9F, 0.0F});
  s.min_p = chance.of({0.0F, 0.0F, 0.0F, 0.05F, 0.5F, 1.0F, 1e-6F, 1e-30F});
  if (chance.below(3) == 0) s.repetition_penalty = 0.5F + static_cast<float>(chance.uniform());
  if (chance.below(3) == 0) s.presence_penalty = static_cast<float>(chance.uniform() * 4.0 - 2.0);
  if (chance.below(3) == 0) s.frequency_penalty = static_cast<float>(chance.uniform() * 4.0 - 2.0);
  if (chance.below(4) == 0) {
    for (int i = 0; i < 4; ++i) {
      s.logit_bias.emplace_back(token(), static_cast<float>(chance.uniform() * 200.0 - 100.0));
    }
  }
  if (chance.below(4) == 0) {
    request.stop.min_tokens = static_cast<std::uint32_t>(chance.below(30));
    request.stop.stop_token_ids = {token()};
  }
  if (chance.below(2) == 0) request.top_logprobs = static_cast<std::uint32_t>(chance.below(25));
  s.seed = chance.below(1U << 30U);
  s.choice_index = static_cast<std::uint32_t>(chance.below(4));
  return request;
}

/// One case on every set: each equals the plain sampler, and those with FMA each other. The scratch
/// is kept from case to case, as a worker keeps it.
void check_case(std::uint64_t seed, std::uint32_t size, SamplerScratch& scratch) {
  Chance chance(seed);
  const std::vector<float> logits = random_logits(chance, size);
  const Request request = random_request(chance, size);
  std::vector<TokenId> history(1 + chance.below(60));
  for (TokenId& token : history) token = static_cast<TokenId>(chance.below(size));
  SampleInput input;
  input.sequence = SequenceId{seed};
  input.logits = logits;
  input.history = history;
  input.num_prompt_tokens = static_cast<std::uint32_t>(chance.below(history.size() + 1));
  input.request = &request;
  const SamplingParams& s = request.sampling;
  INFO("seed " << seed << ", size " << size << ", temperature " << s.temperature << ", top_k "
               << s.top_k << ", top_p " << s.top_p << ", min_p " << s.min_p);
  std::optional<SampledToken> with_fma;
  for (const Isa isa : compiled_isas()) {
    if (!cpu_supports(isa)) continue;
    INFO("instruction set " << isa_name(isa));
    const SampledToken sampled = sample(kernels_for(isa), input, scratch);
    REQUIRE(sampled == sample_plainly(kernels_for(isa), input));
    if (isa == Isa::kScalar) continue;
    if (with_fma.has_value()) REQUIRE(sampled == *with_fma);
    with_fma = sampled;
  }
}

void check_cases(std::uint32_t size, std::uint64_t num_cases) {
  SamplerScratch scratch(size);
  for (std::uint64_t i = 0; i < num_cases; ++i) check_case(size * 100'000ULL + i, size, scratch);
}

}  // namespace

TEST_CASE("Sampler: equals the plain one on small rows", "[runtime][sampling]") {
  for (const std::uint32_t size : {1U, 2U, 15U, 16U, 17U, 100U}) check_cases(size, 1000);
}

TEST_CASE("Sampler: equals the plain one on rows of some ranges", "[runtime][sampling]") {
  for (const std::uint32_t size : {1000U, 1024U, 1025U, 5003U}) check_cases(size, 400);
}

TEST_CASE("Sampler: equals the plain one on rows of 49152", "[runtime][sampling]") {
  check_cases(49152, 150);
}

TEST_CASE("Candidates: order is by score, then by id, and gives both back", "[runtime][sampling]") {
  const std::vector<float> scores = {kInf, kLargest, 1.5F, 1e-45F, 0.0F, -1e-45F, -2.0F, -kInf};
  for (std::size_t i = 0; i < scores.size(); ++i) {
    CHECK(score_of(candidate_of(7, scores[i])) == scores[i]);
    CHECK(token_of(candidate_of(0xFFFFFFFFU, scores[i])) == 0xFFFFFFFFU);
    CHECK(candidate_of(3, scores[i]) < candidate_of(4, scores[i]));
    if (i > 0) CHECK(candidate_of(9, scores[i - 1]) < candidate_of(0, scores[i]));
  }
  CHECK(candidate_of(1, 0.0F) == candidate_of(1, -0.0F));
}

TEST_CASE("Candidates: however many tokens tie, few are held at a time", "[runtime][sampling]") {
  constexpr std::uint32_t kSize = 49152;
  const auto score = [](float logit) { return logit; };
  RowScan row(kSize);
  CandidateBuffer buffer(kSize);
  std::vector<float> ascending(kSize);
  for (std::uint32_t i = 0; i < kSize; ++i) ascending[i] = static_cast<float>(i);
  for (const std::vector<float>& logits : {std::vector<float>(kSize, 2.0F), ascending}) {
    (void)row.scan(kernels_for(best_isa()), logits);
    const std::size_t count = collect_heaviest(row, -kInf, 40, score, buffer);
    CHECK(count < 2 * 40 + kVocabRange);
    const auto sorted = sort_heaviest(buffer, count, 40);
    REQUIRE(sorted.size() == 40);
    CHECK(score_of(sorted.front()) == score_of(candidate_of(0, logits.back())));
    CHECK(token_of(sorted[39]) == (logits.front() == logits.back() ? 39U : kSize - 40U));
  }
}

TEST_CASE("RowScan: a cut for some of the heaviest has them above it and few more",
          "[runtime][sampling]") {
  constexpr std::uint32_t kSize = 20'000;
  Chance chance(3);
  std::vector<float> logits(kSize);
  for (float& logit : logits) logit = static_cast<float>(chance.uniform() * 20.0 - 10.0);
  RowScan row(kSize);
  CandidateBuffer buffer(kSize);
  (void)row.scan(kernels_for(best_isa()), logits);
  for (const std::size_t wanted : {std::size_t{1}, std::size_t{20}, row.most_heaviest()}) {
    const float below = row.below_heaviest(wanted);
    const std::size_t above = collect_above(
        row, below, [](float logit) { return logit; }, buffer);
    CHECK(above >= wanted);
    // Of 64 places under one maximum more than one can be above: at a half of all lanes some 40 %
    // more.
    CHECK(above <= 2 * wanted + 8);
  }
  CHECK(row.below_heaviest(row.most_heaviest() + 1) == -kInf);
}
