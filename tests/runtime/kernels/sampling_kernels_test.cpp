// The kernels under the sampler against the order that kernel_table.h promises, bit by bit.
#include "tests/runtime/kernels/kernel_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace kvasir::runtime;
using namespace kvasir::runtime::testing;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint32_t kSizes[] = {1,  2,  7,   8,   9,    15,   16,   17,   31,   63,
                                    64, 65, 100, 127, 1023, 1024, 1025, 1032, 1039, 5003};

/// Numbers of a row with some that are none, and behind it 32 that must never be looked at.
std::vector<float> row_of(std::uint32_t n, std::uint32_t seed) {
  Numbers numbers(seed);
  std::vector<float> x = numbers.floats(n, 20.0F);
  constexpr float kSpecial[] = {kNan, -kInfinity, kNan, -kLargest, 0.0F, -0.0F};
  for (std::uint32_t i = 0; i < n / 5; ++i) x[numbers.bits() % n] = kSpecial[i % 6];
  x.resize(n + 32, 1000.0F);
  return x;
}

}  // namespace

TEST_CASE("lane_maxima: the largest of each lane of each range, and of all", "[runtime][kernel]") {
  for (const std::uint32_t n : kSizes) {
    INFO(n << " logits");
    const std::vector<float> x = row_of(n, 60);
    std::vector<float> expected((n + 1023) / 1024 * 16, -kInfinity);
    for (std::uint32_t i = 0; i < n; ++i) {
      float& largest = expected[i / 1024 * 16 + i % 16];
      if (x[i] > largest) largest = x[i];
    }
    for_each_isa([&](const KernelTable& table) {
      std::vector<float> maxima(expected.size(), kNan);
      const float largest = table.lane_maxima(x.data(), n, maxima.data());
      CHECK(maxima == expected);
      CHECK(largest == *std::max_element(expected.begin(), expected.end()));
    });
  }
}

TEST_CASE("find_above: all that are above the cut, in order, never a NaN", "[runtime][kernel]") {
  for (const std::uint32_t n : kSizes) {
    INFO(n << " logits");
    std::vector<float> x = row_of(n, 61);
    if (n > 8) x[8] = kInfinity;
    for (const float below :
         {-kInfinity, -kLargest, -3.0F, -0.0F, 0.0F, 19.0F, x[n - 1], kLargest, kInfinity}) {
      std::vector<std::uint32_t> expected;
      for (std::uint32_t i = 0; i < n; ++i) {
        if (x[i] > below) expected.push_back(i);
      }
      for_each_isa([&](const KernelTable& table) {
        std::vector<std::uint32_t> found(n);
        found.resize(table.find_above(x.data(), below, n, found.data()));
        CHECK(found == expected);
      });
    }
  }
}

TEST_CASE("softmax_sums: eight sums in double for each range of 1024", "[runtime][kernel]") {
  for (const std::uint32_t n : kSizes) {
    for (const float temperature : {1.0F, 0.7F, 3.0F}) {
      INFO(n << " logits, temperature " << temperature);
      std::vector<float> x = row_of(n, 62);
      if (n > 30) x[29] = 21.5F;
      const float maximum = 21.5F;
      for_each_isa([&](const KernelTable& table) {
        std::vector<double> sums((n + 1023) / 1024, -1.0);
        table.softmax_sums(x.data(), maximum, temperature, sums.data(), n);
        for (std::uint32_t begin = 0; begin < n; begin += 1024) {
          const std::uint32_t count = std::min(1024U, n - begin);
          double lanes[8] = {};
          for (std::uint32_t i = 0; i < count; ++i) {
            const float logit = std::isnan(x[begin + i]) ? -kInfinity : x[begin + i];
            const float weight = table_exp(table, (logit - maximum) / temperature);
            lanes[i < count / 8 * 8 ? i % 8 : 0] += static_cast<double>(weight);
          }
          double expected = 0.0;
          for (const double lane : lanes) expected += lane;
          CHECK(sums[begin / 1024] == expected);
        }
      });
    }
  }
}

TEST_CASE("softmax_sums: +inf counts as the largest float", "[runtime][kernel]") {
  for_each_isa([](const KernelTable& table) {
    for (const float temperature : {1.0F, 0.5F}) {
      std::vector<float> x(100, 5.0F);
      x[3] = x[70] = kInfinity;
      x[98] = kLargest;
      double sum = 0.0;
      table.softmax_sums(x.data(), kLargest, temperature, &sum, 100);
      CHECK(sum == 3.0);
    }
  });
}

TEST_CASE("softmax_sums: the last float with a weight has it, the next has none",
          "[runtime][kernel]") {
  for_each_isa([](const KernelTable& table) {
    for (const std::uint32_t n : {1U, 64U}) {
      double sum = 0.0;
      table.softmax_sums(std::vector<float>(n, -86.5F).data(), 0.0F, 1.0F, &sum, n);
      CHECK(sum == n * static_cast<double>(table_exp(table, -86.5F)));
      CHECK(sum > 0.0);
      const float next = std::nextafter(-86.5F, -kInfinity);
      table.softmax_sums(std::vector<float>(n, next).data(), 0.0F, 1.0F, &sum, n);
      CHECK(sum == 0.0);
    }
  });
}
