// Every step of the sampler by cases whose answer is known, the draws by their distribution, and
// the fast paths by a plain implementation that sorts the whole vocabulary.
#include "runtime/sampling/sampler.h"

#include "core/rng.h"
#include "runtime/kernels/dispatch.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

using namespace kvasir;
using namespace kvasir::runtime;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// One row with its request and history. The history's first token is the prompt.
struct Row {
  std::vector<float> logits;
  Request request;
  std::vector<TokenId> history = {0};
  std::uint32_t num_prompt_tokens = 1;
};

SampledToken sample_row(const Row& row, Isa isa = best_isa()) {
  SamplerScratch scratch(static_cast<std::uint32_t>(row.logits.size()));
  SampleInput input;
  input.sequence = SequenceId{9};
  input.logits = row.logits;
  input.history = row.history;
  input.num_prompt_tokens = row.num_prompt_tokens;
  input.request = &row.request;
  return sample(kernels_for(isa), input, scratch);
}

Row greedy_row(std::vector<float> logits) {
  Row row;
  row.logits = std::move(logits);
  row.request.sampling.temperature = 0.0F;
  return row;
}

Row random_row(std::vector<float> logits) {
  Row row;
  row.logits = std::move(logits);
  row.request.sampling.temperature = 1.0F;
  row.request.sampling.seed = 12345;
  return row;
}

/// How often each token is drawn at positions 1 to num_draws.
std::vector<std::uint32_t> count_draws(Row row, std::uint32_t num_draws) {
  const std::vector<TokenId> history(num_draws, 0);
  SamplerScratch scratch(static_cast<std::uint32_t>(row.logits.size()));
  std::vector<std::uint32_t> counts(row.logits.size());
  for (std::uint32_t n = 1; n <= num_draws; ++n) {
    SampleInput input;
    input.logits = row.logits;
    input.history = std::span(history).first(n);
    input.num_prompt_tokens = 1;
    input.request = &row.request;
    ++counts[sample(kernels_for(best_isa()), input, scratch).token];
  }
  return counts;
}

std::set<TokenId> drawn_tokens(const Row& row, std::uint32_t num_draws) {
  const auto counts = count_draws(row, num_draws);
  std::set<TokenId> tokens;
  for (TokenId id = 0; id < counts.size(); ++id) {
    if (counts[id] > 0) tokens.insert(id);
  }
  return tokens;
}

/// Chi-square of the counts against the probabilities. With df degrees of freedom its mean is df
/// and its variance 2 df; five standard deviations above the mean is a fluke of less than one in a
/// thousand seeds, and the seed is fixed.
void check_distribution(const std::vector<std::uint32_t>& counts,
                        const std::vector<double>& probabilities) {
  const double num_draws = std::accumulate(counts.begin(), counts.end(), 0.0);
  double chi_square = 0.0;
  double degrees = -1.0;
  for (std::size_t id = 0; id < counts.size(); ++id) {
    if (probabilities[id] == 0.0) {
      CHECK(counts[id] == 0);
      continue;
    }
    const double expected = num_draws * probabilities[id];
    chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
    degrees += 1.0;
  }
  CHECK(chi_square <= degrees + 5.0 * std::sqrt(2.0 * degrees));
}

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 3.0));
  return logits;
}

/// Bell-shaped logits, as a model's are.
std::vector<float> noisy_logits(std::uint32_t count, std::uint64_t seed, double spread) {
  std::vector<float> logits(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    double sum = 0.0;
    for (std::uint32_t k = 0; k < 6; ++k)
      sum += uniform01({.seed = seed, .choice_index = k, .position = i}) - 0.5;
    logits[i] = static_cast<float>(sum * spread);
  }
  return logits;
}

}  // namespace

TEST_CASE("Sampler: greedy takes the largest logit, ties to the lowest id", "[runtime][sampling]") {
  CHECK(sample_row(greedy_row({1, 5, 5, 2})).token == 1);
  CHECK(sample_row(greedy_row({-3})).token == 0);
  CHECK(sample_row(greedy_row({0.0F, -0.0F})).token == 0);
  CHECK(sample_row(greedy_row({-0.0F, 0.0F})).token == 0);
  for (std::uint32_t size = 1; size < 70; ++size) {  // every place in the lanes and in the tail
    for (std::uint32_t best = 0; best < size; ++best) {
      std::vector<float> logits(size, -2.0F);
      logits[best] = 1.0F;
      logits[size - 1] = 1.0F;
      REQUIRE(sample_row(greedy_row(logits)).token == best);
    }
  }
  CHECK(sample_row(greedy_row({1, 2})).sequence == SequenceId{9});
}

TEST_CASE("Sampler: NaN counts as no probability, infinities are taken as they are",
          "[runtime][sampling]") {
  CHECK(sample_row(greedy_row({kNan, -7, kNan})).token == 1);
  CHECK(sample_row(greedy_row({3, kInf, kNan})).token == 1);
  for (const Isa isa : {Isa::kScalar, best_isa()}) {
    Row row = random_row({kNan, -7, -kInf, -kInf});
    CHECK(sample_row(row, isa).token == 1);
    CHECK(!sample_row(row, isa).all_banned);
    row = random_row({3, kInf, kNan});
    CHECK(sample_row(row, isa).token == 1);
  }
}

TEST_CASE("Sampler: a row without any allowed token says so", "[runtime][sampling]") {
  for (Row row : {greedy_row({kNan, -kInf}), random_row({-kInf, kNan}), greedy_row({4, 5})}) {
    row.request.stop.min_tokens = 2;
    row.request.stop.stop_token_ids = {0, 1};
    row.request.top_logprobs = 2;
    const SampledToken sampled = sample_row(row);
    CHECK(sampled.all_banned);
    CHECK(std::isfinite(sampled.logprob));
    CHECK(sampled.top.size() == 2);
  }
  Row row = greedy_row({kNan, kNan});
  row.request.top_logprobs = 1;
  CHECK(sample_row(row).all_banned);
  CHECK(sample_row(row).logprob == -9999.0F);
}

TEST_CASE("Sampler: stop tokens are banned until min_tokens were generated",
          "[runtime][sampling]") {
  Row row = greedy_row({1, 9, 8, 2});
  row.request.stop.stop_token_ids = {1, 2, 1000};
  row.request.stop.min_tokens = 2;
  row.history = {0, 0, 0};
  row.num_prompt_tokens = 3;
  CHECK(sample_row(row).token == 3);
  row.history.push_back(3);
  CHECK(sample_row(row).token == 3);
  row.history.push_back(3);
  CHECK(sample_row(row).token == 1);
}

TEST_CASE("Sampler: the repetition penalty divides positive logits and multiplies negative ones",
          "[runtime][sampling]") {
  Row row = greedy_row({4.0F, 3.0F, -1.0F});
  row.request.sampling.repetition_penalty = 2.0F;
  row.history = {0, 0, 0};  // once, however often it occurred: 4 / 2 = 2 < 3
  row.num_prompt_tokens = 3;
  CHECK(sample_row(row).token == 1);
  row.history = {1, 0};  // prompt and generated alike: 2, 1.5, -1
  row.num_prompt_tokens = 1;
  CHECK(sample_row(row).token == 0);
  row.logits = {-4.0F, -3.0F, -5.0F};
  row.history = {1};  // -3 * 2 = -6: below both
  row.num_prompt_tokens = 1;
  CHECK(sample_row(row).token == 0);
  row.history = {0, 1};
  CHECK(sample_row(row).token == 2);
}

TEST_CASE("Sampler: penalties and biases past the largest float still choose a token",
          "[runtime][sampling]") {
  Row row = random_row({1.0F, 5.0F, 2.0F, 6.0F});
  row.history = {1, 3, 3};
  row.request.sampling.repetition_penalty = 1.2e-38F;
  for (const float top_p : {1.0F, 0.9F}) {
    row.request.sampling.top_p = top_p;
    const SampledToken sampled = sample_row(row);
    CHECK_FALSE(sampled.all_banned);
    CHECK((sampled.token == 1 || sampled.token == 3));  // both are at the largest float
  }
}

TEST_CASE("Sampler: presence and frequency penalties count generated tokens only",
          "[runtime][sampling]") {
  Row row = greedy_row({4.0F, 3.5F, 0.0F});
  row.history = {0, 0, 0, 0};
  row.num_prompt_tokens = 4;
  row.request.sampling.presence_penalty = 1.0F;
  CHECK(sample_row(row).token == 0);
  row.num_prompt_tokens = 3;  // 4 - 1 < 3.5
  CHECK(sample_row(row).token == 1);
  row.request.sampling.presence_penalty = 0.0F;
  row.request.sampling.frequency_penalty = 0.3F;
  CHECK(sample_row(row).token == 0);  // 4 - 0.3
  row.num_prompt_tokens = 2;
  CHECK(sample_row(row).token == 1);  // 4 - 0.6
  row.request.sampling.frequency_penalty = -0.3F;
  row.history = {0, 1, 1};
  row.num_prompt_tokens = 1;
  CHECK(sample_row(row).token == 1);  // 3.5 + 0.6
}

TEST_CASE("Sampler: bias is added after the penalties", "[runtime][sampling]") {
  Row row = greedy_row({4.0F, 3.0F, 0.0F});
  row.request.sampling.logit_bias = {{2, 5.0F}};
  CHECK(sample_row(row).token == 2);
  row.request.sampling.logit_bias = {{0, -100.0F}, {2, 1.0F}};
  CHECK(sample_row(row).token == 1);
  // 4 / 4 + 2.5 = 3.5 wins; (4 + 2.5) / 4 would lose to 3.
  row.request.sampling.logit_bias = {{0, 2.5F}};
  row.request.sampling.repetition_penalty = 4.0F;
  row.history = {0};
  CHECK(sample_row(row).token == 0);
}

TEST_CASE("Sampler: a step at its default changes nothing", "[runtime][sampling]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Row plain = greedy_row(noisy_logits(500, seed, 4.0));
    Row slow = plain;
    slow.request.sampling.logit_bias = {{3, 0.0F}};  // takes the path that copies
    CHECK(sample_row(plain).token == sample_row(slow).token);
    plain = random_row(noisy_logits(500, seed, 4.0));
    slow = plain;
    slow.request.sampling.logit_bias = {{3, 0.0F}};
    CHECK(sample_row(plain).token == sample_row(slow).token);
  }
}

TEST_CASE("Sampler: draws follow the softmax", "[runtime][sampling]") {
  const std::vector<double> p = {0.3, 0.05, 0.2, 0.02, 0.23, 0.1, 0.06, 0.04};
  check_distribution(count_draws(random_row(logits_of(p)), 20000), p);

  std::vector<double> squared;  // temperature 1/2 squares the probabilities
  double sum = 0.0;
  for (const double x : p) sum += x * x;
  for (const double x : p) squared.push_back(x * x / sum);
  Row row = random_row(logits_of(p));
  row.request.sampling.temperature = 0.5F;
  check_distribution(count_draws(row, 20000), squared);
}

TEST_CASE("Sampler: draws reach every range of a larger vocabulary", "[runtime][sampling]") {
  // Four tokens of equal weight, in the first, second and last range of the sums and at the very
  // end.
  std::vector<float> logits(5000, -kInf);
  std::vector<double> p(5000, 0.0);
  for (const std::size_t id :
       {std::size_t{0}, std::size_t{1024}, std::size_t{4500}, std::size_t{4999}}) {
    logits[id] = 2.0F;
    p[id] = 0.25;
  }
  check_distribution(count_draws(random_row(logits), 4000), p);
}

TEST_CASE("Sampler: top-k keeps the k best, ties to the lowest id", "[runtime][sampling]") {
  Row row = random_row({1, 3, 3, 3, 2});
  row.request.sampling.top_k = 2;
  CHECK(drawn_tokens(row, 200) == std::set<TokenId>{1, 2});
  row.request.sampling.top_k = 1;
  CHECK(drawn_tokens(row, 200) == std::set<TokenId>{1});
  row.request.sampling.top_k = 4;
  CHECK(drawn_tokens(row, 2000) == std::set<TokenId>{1, 2, 3, 4});
  row.request.sampling.top_k = 50;
  CHECK(drawn_tokens(row, 2000).size() == 5);
  row.logits = logits_of({0.1, 0.2, 0.3, 0.4});
  row.request.sampling.top_k = 2;
  check_distribution(count_draws(row, 10000), {0, 0, 3.0 / 7, 4.0 / 7});
}

TEST_CASE("Sampler: a top-k of the whole vocabulary draws what no top-k draws",
          "[runtime][sampling]") {
  std::vector<float> logits;
  for (int i = 0; i < 3000; ++i) logits.push_back(std::sin(static_cast<float>(i) * 0.7F) * 3.0F);
  Row off = random_row(logits);
  Row all = random_row(logits);
  for (const std::uint32_t top_k : {3000U, 3001U, 4000000000U}) {
    all.request.sampling.top_k = top_k;
    for (std::uint32_t seed = 0; seed < 200; ++seed) {
      off.request.sampling.seed = all.request.sampling.seed = seed;
      CHECK(sample_row(off).token == sample_row(all).token);
    }
  }
}

TEST_CASE("Sampler: top-p keeps the smallest set that reaches it, the crossing token included",
          "[runtime][sampling]") {
  Row row = random_row({2, 2, 2, 2});  // weights are exactly 1, so that the borders are exact
  const auto kept = [&](float top_p) {
    row.request.sampling.top_p = top_p;
    return drawn_tokens(row, 400).size();
  };
  CHECK(kept(0.0F) == 1);
  CHECK(kept(1e-9F) == 1);
  CHECK(kept(0.25F) == 1);
  CHECK(kept(0.26F) == 2);
  CHECK(kept(0.5F) == 2);
  CHECK(kept(0.51F) == 3);
  CHECK(kept(0.75F) == 3);
  CHECK(kept(0.999F) == 4);
  CHECK(kept(1.0F) == 4);
  row.request.sampling.top_p = 0.5F;
  CHECK(drawn_tokens(row, 400) == std::set<TokenId>{0, 1});

  row = random_row(logits_of({0.1, 0.4, 0.2, 0.3}));
  row.request.sampling.top_p = 0.65F;
  check_distribution(count_draws(row, 10000), {0, 4.0 / 7, 0, 3.0 / 7});
}

TEST_CASE("Sampler: min-p keeps what is heavy enough beside the heaviest", "[runtime][sampling]") {
  Row row = random_row(logits_of({0.5, 0.26, 0.14, 0.1}));
  row.request.sampling.min_p = 0.25F;  // at least 0.125
  check_distribution(count_draws(row, 10000), {0.5 / 0.9, 0.26 / 0.9, 0.14 / 0.9, 0});
  row = random_row({1, 1, 0});
  row.request.sampling.min_p = 1.0F;
  CHECK(drawn_tokens(row, 100) == std::set<TokenId>{0, 1});
}

TEST_CASE("Sampler: top-p counts what min-p and top-k left", "[runtime][sampling]") {
  Row row = random_row(logits_of({0.4, 0.3, 0.2, 0.1}));
  row.request.sampling.top_k = 2;
  row.request.sampling.top_p = 0.56F;  // 0.4 / 0.7 = 0.571 reaches it alone
  CHECK(drawn_tokens(row, 300) == std::set<TokenId>{0});
  row.request.sampling.top_p = 0.58F;
  CHECK(drawn_tokens(row, 300) == std::set<TokenId>{0, 1});
  row.request.sampling.top_k = 0;
  row.request.sampling.min_p = 0.6F;  // leaves the same two
  CHECK(drawn_tokens(row, 300) == std::set<TokenId>{0, 1});
}

TEST_CASE("Sampler: seed, choice and position each change the draw, and nothing else does",
          "[runtime][sampling]") {
  const Row row = random_row(std::vector<float>(1000, 0.0F));
  const TokenId token = sample_row(row).token;
  CHECK(sample_row(row).token == token);
  const auto differs = [&](const auto& change) {
    std::uint32_t different = 0;
    for (std::uint32_t i = 1; i <= 20; ++i) {
      Row other = row;
      change(other, i);
      different += sample_row(other).token != token ? 1 : 0;
    }
    return different;
  };
  // 20 draws from 1000 equal tokens: one chance hit is as good as excluded to happen twice.
  CHECK(differs([](Row& r, std::uint32_t i) { r.request.sampling.seed += i; }) >= 19);
  CHECK(differs([](Row& r, std::uint32_t i) { r.request.sampling.choice_index += i; }) >= 19);
  CHECK(differs([](Row& r, std::uint32_t i) { r.history.resize(1 + i); }) >= 19);
  CHECK(differs([](Row& r, std::uint32_t i) { r.history[0] = i; }) == 0);
  CHECK(differs([](Row& r, std::uint32_t i) { r.num_prompt_tokens = i % 2; }) == 0);
  CHECK(differs([](Row& r, std::uint32_t i) { r.request.top_logprobs = i; }) == 0);
  // The number is uniform01 of the key, straight.
  const double uniform = uniform01({.seed = 12345, .choice_index = 0, .position = 1});
  CHECK(token == static_cast<TokenId>(uniform * 1000));
}

namespace {

/// The documented order with a full sort and no shortcut.
TokenId sample_plainly(const Row& row, Isa isa) {
  const SamplingParams& s = row.request.sampling;
  const float max = *std::max_element(row.logits.begin(), row.logits.end());
  std::vector<float> scaled;
  for (const float logit : row.logits) scaled.push_back((logit - max) / s.temperature);
  std::vector<float> weights(scaled.size());
  (void)kernels_for(isa).exp_shifted(scaled.data(), 0.0F, weights.data(),
                                     static_cast<std::uint32_t>(scaled.size()));
  std::vector<TokenId> order(scaled.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](TokenId a, TokenId b) { return scaled[a] > scaled[b]; });
  if (s.top_k != 0 && s.top_k < order.size()) order.resize(s.top_k);
  std::erase_if(order, [&](TokenId id) { return weights[id] < s.min_p; });
  double total = 0.0;
  for (const TokenId id : order) total += static_cast<double>(weights[id]);
  double sum = 0.0;
  std::size_t kept = 0;
  while (kept < order.size() && (kept == 0 || sum < static_cast<double>(s.top_p) * total)) {
    sum += static_cast<double>(weights[order[kept++]]);
  }
  order.resize(kept);
  double target =
      sum *
      uniform01({.seed = s.seed, .choice_index = s.choice_index, .position = row.history.size()});
  for (const TokenId id : order) {
    target -= static_cast<double>(weights[id]);
    if (target < 0.0) return id;
  }
  return order.back();
}

}  // namespace

TEST_CASE("Sampler: the shortcuts choose what a full sort chooses", "[runtime][sampling]") {
  for (const Isa isa : compiled_isas()) {
    if (!cpu_supports(isa)) continue;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      for (const float top_p : {0.05F, 0.5F, 0.9F, 0.999F}) {
        for (const std::uint32_t top_k : {0U, 3U, 40U}) {
          Row row = random_row(noisy_logits(3001, seed, 1.0 + static_cast<double>(seed % 7)));
          row.request.sampling.seed = seed;
          row.request.sampling.temperature = 0.4F + 0.2F * static_cast<float>(seed % 6);
          row.request.sampling.top_p = top_p;
          row.request.sampling.top_k = top_k;
          row.request.sampling.min_p = seed % 3 == 0 ? 0.02F : 0.0F;
          INFO("seed " << seed << ", top_p " << top_p << ", top_k " << top_k);
          REQUIRE(sample_row(row, isa).token == sample_plainly(row, isa));
        }
      }
    }
  }
}
