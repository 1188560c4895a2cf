#include "tests/runtime/kernels/kernel_cases.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

using namespace kvasir::runtime;
using namespace kvasir::runtime::testing;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("exp: exact at zero and the infinities, zero for all that would be subnormal",
          "[runtime][kernel]") {
  for_each_isa([](const KernelTable& table) {
    CHECK(bits_of(table_exp(table, 0.0F)) == bits_of(1.0F));
    CHECK(bits_of(table_exp(table, -0.0F)) == bits_of(1.0F));
    CHECK(bits_of(table_exp(table, -kInfinity)) == bits_of(0.0F));
    CHECK(table_exp(table, kInfinity) == kInfinity);
    CHECK(table_exp(table, 88.75F) == kInfinity);
    CHECK(table_exp(table, 3e38F) == kInfinity);
    CHECK(std::isfinite(table_exp(table, 88.72F)));
    CHECK(bits_of(table_exp(table, -87.0F)) == bits_of(0.0F));
    CHECK(bits_of(table_exp(table, -3e38F)) == bits_of(0.0F));
    for (float x = -86.5F; x < -80.0F; x += 0.01F) REQUIRE(std::isnormal(table_exp(table, x)));
  });
}

TEST_CASE("exp: within 2 ulp of the double exponential and never decreasing beyond that",
          "[runtime][kernel]") {
  constexpr std::uint32_t kStep = 4099;  // every so many floats, over all that have a normal result
  for_each_isa([](const KernelTable& table) {
    double worst = 0.0;
    for (const std::uint32_t sign : {0U, 0x80000000U}) {
      for (std::uint32_t bits = 0; bits < bits_of(88.7F); bits += kStep) {
        const float x = std::bit_cast<float>(sign | bits);
        if (x < -86.5F) break;
        const double exact = std::exp(static_cast<double>(x));
        const float out = table_exp(table, x);
        const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
        worst = std::max(worst, std::fabs(static_cast<double>(out) - exact) / ulp);
      }
    }
    INFO("worst error " << worst << " ulp");
    CHECK(worst <= 2.0);
    UNSCOPED_INFO(table.name << ": worst error of exp " << worst << " ulp");
  });
}

TEST_CASE("exp: softmax weights of ascending scores ascend", "[runtime][kernel]") {
  for_each_isa([](const KernelTable& table) {
    float previous = 0.0F;
    for (float x = -86.0F; x <= 0.0F; x += 0.001F) {
      const float now = table_exp(table, x);
      REQUIRE(now >= previous);
      previous = now;
    }
  });
}

// The sampler turns every filter by weight into a cut through the logits: one float for which a
// larger score had a smaller weight would make it keep the wrong tokens.
TEST_CASE("exp: never decreases from one float to the next", "[runtime][kernel]") {
  constexpr std::uint32_t kAround =
      3000;  // floats to each side of where the polynomial starts anew
  constexpr std::uint32_t kStep = 67;
  const std::uint32_t end = bits_of(-86.6F), zero = bits_of(-0.0F);
  std::vector<float> scores;  // descending
  for (std::uint32_t bits = zero; bits < end; bits += kStep) {
    scores.push_back(std::bit_cast<float>(bits));
  }
  for (int n = 0; n < 125; ++n) {
    const auto border = static_cast<float>(-(n + 0.5) * std::log(2.0));
    for (std::uint32_t i = 0; i < 2 * kAround; ++i) {
      const std::uint32_t bits = bits_of(border) - kAround + i;
      if (bits < end) scores.push_back(std::bit_cast<float>(bits));
    }
  }
  std::sort(scores.begin(), scores.end(), std::greater<>());
  for_each_isa([&](const KernelTable& table) {
    std::vector<float> weights(scores.size());
    (void)table.exp_shifted(scores.data(), 0.0F, weights.data(),
                            static_cast<std::uint32_t>(scores.size()));
    CHECK(std::is_sorted(weights.begin(), weights.end(), std::greater<>()));
  });
}

TEST_CASE("exp: the sets with FMA agree to the bit", "[runtime][kernel]") {
  if (!cpu_supports(Isa::kAvx512)) return;
  Numbers numbers(50);
  for (int i = 0; i < 20'000; ++i) {
    const float x = numbers.uniform(90.0F);
    REQUIRE(bits_of(table_exp(kernels_for(Isa::kAvx2), x)) ==
            bits_of(table_exp(kernels_for(Isa::kAvx512), x)));
  }
}

TEST_CASE("exp_shifted: each element as alone, the sum over ranges of 1024 in sixteen lanes",
          "[runtime][kernel]") {
  for (const std::uint32_t n : {1U, 15U, 16U, 1023U, 1024U, 1025U, 5003U}) {
    INFO(n << " elements");
    Numbers numbers(51);
    auto x = numbers.floats(n, 10.0F);
    if (n > 20) x[17] = kNan;
    for_each_isa([&](const KernelTable& table) {
      std::vector<float> out(n);
      const float sum = table.exp_shifted(x.data(), 9.5F, out.data(), n);
      float expected = 0.0F;
      for (std::uint32_t begin = 0; begin < n; begin += 1024) {
        float lanes[16] = {};
        for (std::uint32_t i = begin; i < std::min(n, begin + 1024); ++i) {
          const float e = std::isnan(x[i]) ? 0.0F : table_exp(table, x[i] - 9.5F);
          REQUIRE(bits_of(out[i]) == bits_of(e));
          lanes[i % 16] += e;
        }
        expected += fold_lanes(lanes);
      }
      CHECK(bits_of(sum) == bits_of(expected));
      CHECK(bits_of(table.exp_shifted(x.data(), 9.5F, x.data(), 0)) == bits_of(0.0F));
    });
  }
}

TEST_CASE("exp_shifted: infinities give weights, not NaN", "[runtime][kernel]") {
  const std::vector<float> x = {kInfinity, 1.0F, -kInfinity, kNan};
  for_each_isa([&](const KernelTable& table) {
    std::vector<float> out(4);
    CHECK(table.exp_shifted(x.data(), kInfinity, out.data(), 4) == 1.0F);
    CHECK(out == std::vector<float>{1.0F, 0.0F, 0.0F, 0.0F});
    CHECK(table.exp_shifted(x.data() + 1, 1.0F, out.data(), 3) == 1.0F);
  });
}

TEST_CASE("logits_stats: maximum, first place of it, and logsumexp near the double result",
          "[runtime][kernel]") {
  for (const std::uint32_t n : {1U, 7U, 16U, 100U, 1024U, 49152U}) {
    INFO(n << " logits");
    Numbers numbers(52);
    const auto logits = numbers.floats(n, 15.0F);
    std::uint32_t best = 0;
    for (std::uint32_t i = 1; i < n; ++i) {
      if (logits[i] > logits[best]) best = i;
    }
    double sum = 0.0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x - logits[best]));
    const double exact = static_cast<double>(logits[best]) + std::log(sum);
    for_each_isa([&](const KernelTable& table) {
      const LogitsStats stats = table.logits_stats(logits.data(), n);
      CHECK(stats.max == logits[best]);
      CHECK(stats.argmax == best);
      // The sum: 64 additions a lane, the fold, n / 1024 ranges, 4 of the exponential; then one
      // rounding of the result.
      const double bound = (64.0 + 4.0 + n / 1024.0 + 4.0 + std::fabs(exact) + 1.0) * kRounding;
      CHECK(std::fabs(static_cast<double>(stats.logsumexp) - exact) <= bound);
    });
  }
}

TEST_CASE("logits_stats: ties go to the lowest id wherever they are", "[runtime][kernel]") {
  constexpr std::uint32_t kCount = 2500;
  for (const std::uint32_t first : {0U, 1U, 15U, 16U, 1023U, 1024U, 2498U}) {
    std::vector<float> logits(kCount, -1.0F);
    logits[first] = 4.0F;
    logits[first + 1] = 4.0F;
    logits[kCount - 1] = 4.0F;
    for_each_isa([&](const KernelTable& table) {
      CHECK(table.logits_stats(logits.data(), kCount).argmax == first);
    });
  }
}

TEST_CASE("logits_stats: NaN counts as -inf", "[runtime][kernel]") {
  const auto stats_of = [](const KernelTable& table, std::vector<float> logits) {
    return table.logits_stats(logits.data(), static_cast<std::uint32_t>(logits.size()));
  };
  for_each_isa([&](const KernelTable& table) {
    for (std::size_t at = 0; at < 40; ++at) {
      std::vector<float> logits(40, 0.0F);
      logits[at] = kNan;
      logits[(at + 7) % 40] = 3.0F;
      const LogitsStats stats = stats_of(table, logits);
      REQUIRE(stats.argmax == (at + 7) % 40);
      REQUIRE(stats.max == 3.0F);
      REQUIRE(stats.logsumexp == Approx(3.0 + std::log(1.0 + 38.0 * std::exp(-3.0))));
    }
    const LogitsStats nothing = stats_of(table, {kNan, kNan, -kInfinity});
    CHECK(nothing.argmax < 3);
    CHECK(nothing.max == -kInfinity);
    CHECK(nothing.logsumexp == -kInfinity);
    CHECK(stats_of(table, {-kInfinity, 2.0F, kNan}).argmax == 1);
    CHECK(stats_of(table, {1.0F, kInfinity, kNan}).argmax == 1);
    CHECK(stats_of(table, {1.0F, kInfinity, kNan}).logsumexp == kInfinity);
  });
}

TEST_CASE("logsumexp: with the maximum given, the bits of logits_stats", "[runtime][kernel]") {
  for (const std::uint32_t n : {1U, 15U, 16U, 17U, 63U, 64U, 65U, 1023U, 1025U, 1100U, 5003U}) {
    Numbers numbers(53);
    auto logits = numbers.floats(n, 40.0F);
    if (n > 20) logits[18] = kNan;
    if (n > 70) logits[69] = -kInfinity;
    for_each_isa([&](const KernelTable& table) {
      const LogitsStats stats = table.logits_stats(logits.data(), n);
      std::vector<float> weights(n);
      const float sum = table.exp_shifted(logits.data(), stats.max, weights.data(), n);
      const double exact = static_cast<double>(stats.max) + std::log(static_cast<double>(sum));
      CHECK(bits_of(stats.logsumexp) == bits_of(static_cast<float>(exact)));
      CHECK(bits_of(table.logsumexp(logits.data(), stats.max, n)) == bits_of(stats.logsumexp));
    });
  }
}
