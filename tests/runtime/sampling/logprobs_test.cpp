// Logprobs are of the raw logits, never positive, never NaN or infinite, and the list is what a
// full sort would give.
#include "runtime/sampling/logprobs.h"

#include "core/rng.h"
#include "runtime/kernels/dispatch.h"
#include "runtime/sampling/sampler.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

using namespace kvasir;
using namespace kvasir::runtime;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SampledToken sample_with_logprobs(const std::vector<float>& logits, Request request, Isa isa) {
  request.top_logprobs = request.top_logprobs.value_or(3);
  SamplerScratch scratch(static_cast<std::uint32_t>(logits.size()));
  const std::vector<TokenId> history = {0};
  SampleInput input;
  input.logits = logits;
  input.history = history;
  input.num_prompt_tokens = 1;
  input.request = &request;
  return sample(kernels_for(isa), input, scratch);
}

std::vector<TokenLogprob> top_of(const std::vector<float>& logits, float logsumexp,
                                 std::uint32_t count) {
  const auto size = static_cast<std::uint32_t>(logits.size());
  RowScan row(size);
  CandidateBuffer buffer(size);
  (void)row.scan(kernels_for(best_isa()), logits);
  std::vector<TokenLogprob> top;
  select_top(row, logsumexp, count, buffer, top);
  return top;
}

}  // namespace

TEST_CASE("Logprobs: rounding never makes one positive, and none is below the floor",
          "[runtime][sampling]") {
  CHECK(logprob_of(2.0F, 1.9999999F) == 0.0F);
  CHECK(logprob_of(1.0F, 3.0F) == -2.0F);
  CHECK(logprob_of(-kInf, 3.0F) == -9999.0F);
  CHECK(logprob_of(-1e30F, 3.0F) == -9999.0F);
  CHECK(logprob_of(kNan, 3.0F) == -9999.0F);
  CHECK(logprob_of(-kInf, -kInf) == -9999.0F);
  CHECK(logprob_of(kInf, kInf) == 0.0F);
  CHECK(logprob_of(1.0F, kInf) == -9999.0F);
}

TEST_CASE("Logprobs: the top list is the head of the sorted vocabulary", "[runtime][sampling]") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::uint32_t size = 1 + static_cast<std::uint32_t>(seed) * 13;
    std::vector<float> logits(size);
    for (std::uint32_t i = 0; i < size; ++i) {  // few values, so that there are many ties
      logits[i] =
          static_cast<float>(static_cast<int>(uniform01({.seed = seed, .position = i}) * 9)) - 4.0F;
    }
    std::vector<TokenId> order(size);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
    for (const std::uint32_t count : {0U, 1U, 5U, 20U}) {
      const std::vector<TokenLogprob> top = top_of(logits, 10.0F, count);
      REQUIRE(top.size() == std::min(count, size));
      for (std::size_t i = 0; i < top.size(); ++i) {
        REQUIRE(top[i].token == order[i]);
        REQUIRE(top[i].logprob == logits[order[i]] - 10.0F);
      }
    }
  }
}

TEST_CASE("Logprobs: NaN and -inf come last in the list, at the floor", "[runtime][sampling]") {
  const std::vector<TokenLogprob> expected = {{3, 0.0F}, {1, -1.0F}, {0, -9999.0F}, {2, -9999.0F}};
  CHECK(top_of({kNan, 1.0F, -kInf, 2.0F}, 2.0F, 4) == expected);
}

TEST_CASE("Logprobs: they are of the raw logits, whatever the sampler does to them",
          "[runtime][sampling]") {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.2F)};
  Request request;
  request.sampling.temperature = 0.0F;
  request.sampling.logit_bias = {{2, 50.0F}};
  request.stop.min_tokens = 5;
  request.stop.stop_token_ids = {0};
  for (const Isa isa : compiled_isas()) {
    if (!cpu_supports(isa)) continue;
    const SampledToken sampled = sample_with_logprobs(logits, request, isa);
    CHECK(sampled.token == 2);
    // Each of logit, logsumexp and their difference is rounded to 2^-24 of a value below 2, and our
    // exp to a few ulp.
    constexpr double kTolerance = 1e-6;
    CHECK(std::abs(sampled.logprob - std::log(0.2)) <= kTolerance);
    REQUIRE(sampled.top.size() == 3);
    CHECK(sampled.top[0].token == 0);
    CHECK(std::abs(sampled.top[0].logprob - std::log(0.5)) <= kTolerance);
    CHECK(sampled.top[2].logprob == sampled.logprob);
  }
}

TEST_CASE("Logprobs: a request for none gets none, and for 0 the chosen token's only",
          "[runtime][sampling]") {
  Request request;
  request.top_logprobs = 0;
  const SampledToken sampled = sample_with_logprobs({0.0F, 0.0F}, request, best_isa());
  CHECK(sampled.top.empty());
  CHECK(std::abs(sampled.logprob - std::log(0.5)) <= 1e-6);
  SamplerScratch scratch(2);
  request.top_logprobs.reset();
  const std::vector<float> logits = {0.0F, 0.0F};
  const std::vector<TokenId> history = {0};
  SampleInput input;
  input.logits = logits;
  input.history = history;
  input.request = &request;
  CHECK(sample(kernels_for(best_isa()), input, scratch).top.empty());
  CHECK(sample(kernels_for(best_isa()), input, scratch).logprob == 0.0F);
}
