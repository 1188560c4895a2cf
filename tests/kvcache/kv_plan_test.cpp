// Token passes and attention scores: known answers, the closed forms against the sums that they
// stand for, and what happens past 64 bits.
#include "kvcache/kv_plan.h"

#include "tests/support/catch.h"

#include <algorithm>
#include <cstdint>
#include <limits>

using namespace kvasir::kvcache;

namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

/// The definition, one query after another.
std::uint64_t summed_scores(std::uint32_t window, std::uint64_t first, std::uint64_t count) {
  std::uint64_t sum = 0;
  for (std::uint64_t q = first; q < first + count; ++q) {
    sum += window == 0 ? q + 1 : std::min<std::uint64_t>(q + 1, window);
  }
  return sum;
}

std::uint64_t summed_scores_without_cache(std::uint32_t window, std::uint64_t prompt,
                                          std::uint64_t rounds) {
  std::uint64_t sum = 0;
  for (std::uint64_t t = prompt; t < prompt + rounds; ++t) sum += summed_scores(window, 0, t);
  return sum;
}

}  // namespace

TEST_CASE("kv_plan: four prompt tokens and six steps, the sketch of every introduction",
          "[kvcache]") {
  CHECK(token_passes_with_cache(4, 6) == 9);
  CHECK(token_passes_without_cache(4, 6) == 39);
  CHECK(attention_scores_with_cache(0, 4, 6) == 45);
  CHECK(attention_scores_without_cache(0, 4, 6) == 155);
}

TEST_CASE("kv_plan: a thousand tokens after a hundred", "[kvcache]") {
  CHECK(token_passes_with_cache(100, 1000) == 1'099);
  CHECK(token_passes_without_cache(100, 1000) == 599'500);
}

TEST_CASE("kv_plan: a window of three, by hand", "[kvcache]") {
  // Queries 0 to 8 see 1 2 3 3 3 3 3 3 3 keys.
  CHECK(attention_scores(3, 0, 9) == 24);
  CHECK(attention_scores(3, 1, 3) == 8);  // 2 3 3
  CHECK(attention_scores(3, 2, 1) == 3);  // the first full window
  CHECK(attention_scores(3, 7, 2) == 6);  // 3 3
  CHECK(attention_scores(1, 5, 4) == 4);  // each sees itself
  CHECK(attention_scores_with_cache(3, 4, 6) == 24);
  // Texts of 4 to 9 tokens from nothing: 9 12 15 18 21 24.
  CHECK(attention_scores_without_cache(3, 4, 6) == 99);
}

TEST_CASE("kv_plan: nothing to generate still reads the prompt once", "[kvcache]") {
  CHECK(token_passes_with_cache(7, 0) == 7);
  CHECK(token_passes_without_cache(7, 0) == 7);
  CHECK(attention_scores_with_cache(0, 7, 0) == 28);
  CHECK(attention_scores_without_cache(0, 7, 0) == 28);
  CHECK(token_passes_with_cache(0, 0) == 0);
  CHECK(token_passes_without_cache(0, 0) == 0);
  CHECK(attention_scores_without_cache(0, 0, 0) == 0);
  CHECK(attention_scores(0, 12, 0) == 0);
  CHECK(attention_scores(4, 12, 0) == 0);
}

TEST_CASE("kv_plan: the closed forms equal the sums they stand for", "[kvcache]") {
  for (const std::uint32_t window : {0U, 1U, 2U, 5U, 8U, 31U}) {
    for (std::uint64_t first = 0; first < 12; ++first) {
      for (std::uint64_t count = 0; count < 14; ++count) {
        CAPTURE(window, first, count);
        CHECK(attention_scores(window, first, count) == summed_scores(window, first, count));
        const std::uint64_t rounds = std::max<std::uint64_t>(count, 1);
        CHECK(attention_scores_without_cache(window, first, count) ==
              summed_scores_without_cache(window, first, rounds));
        std::uint64_t passes = 0;
        for (std::uint64_t t = first; t < first + rounds; ++t) passes += t;
        CHECK(token_passes_without_cache(first, count) == passes);
      }
    }
  }
}

TEST_CASE("kv_plan: scores add up over chunks, so a prefix hit leaves out exactly its own",
          "[kvcache]") {
  for (const std::uint32_t window : {0U, 6U, 100U}) {
    CHECK(attention_scores(window, 0, 40) + attention_scores(window, 40, 77) ==
          attention_scores(window, 0, 117));
  }
}

TEST_CASE("kv_plan: a geometry's scores are one head of every layer", "[kvcache]") {
  KvGeometry geometry;
  geometry.groups = {{15, 1, 256, 512}, {3, 1, 256, 0}};
  CHECK(attention_scores(geometry, 500, 40) ==
        15 * summed_scores(512, 500, 40) + 3 * summed_scores(0, 500, 40));
  CHECK(attention_scores_without_cache(geometry, 510, 5) ==
        15 * summed_scores_without_cache(512, 510, 5) + 3 * summed_scores_without_cache(0, 510, 5));
}

TEST_CASE("kv_plan: 2^32 tokens are exact where the sum fits, and 2^64 - 1 where it does not",
          "[kvcache]") {
  constexpr std::uint64_t kMany = std::uint64_t{1} << 32U;
  CHECK(attention_scores(0, 0, kMany) == (kMany / 2) * (kMany + 1));
  CHECK(attention_scores(512, kMany, kMany) == 512 * kMany);
  CHECK(attention_scores(0, kMany, 1) == kMany + 1);
  CHECK(attention_scores(0, kMany, kMany) == kMost);
  CHECK(attention_scores_without_cache(0, 1, kMany) == kMost);
  CHECK(attention_scores_without_cache(1, 1, kMany - 1) == (kMany / 2) * (kMany - 1));
  CHECK(token_passes_without_cache(kMaxCountedTokens / 2, kMaxCountedTokens / 2) == kMost);

  KvGeometry geometry;
  geometry.groups = {{4, 1, 64, 0}};
  CHECK(attention_scores(geometry, 0, kMany) == kMost);
  // The last exact one: 4.8 million tokens from nothing, the sum of all triangles.
  CHECK(attention_scores_without_cache(0, 1, 4'800'000) == 18'432'011'520'001'600'000ULL);
}
