#include "tests/runtime/kernels/kernel_cases.h"

#include <array>
#include <cmath>
#include <limits>

using namespace kvasir::runtime;
using namespace kvasir::runtime::testing;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The 16 bits that store_kv makes of x.
std::uint16_t stored(const KernelTable& table, KvElement element, float x) {
  std::array<std::uint16_t, 16> k_tile{}, v_tile{};
  table.store_kv(element, &x, &x, reinterpret_cast<std::byte*>(k_tile.data()),
                 reinterpret_cast<std::byte*>(v_tile.data()), 1, 16, 3);
  REQUIRE(k_tile[3] == v_tile[3]);
  return k_tile[3];
}

float from_half(std::uint16_t half) {
  float out = 0.0F;
  kernels_for(Isa::kScalar)
      .dequantize(GgmlType::kF16, reinterpret_cast<const std::byte*>(&half), &out, 1);
  return out;
}

}  // namespace

TEST_CASE("rms_norm: the sum follows the sixteen-lane order, near the double result",
          "[runtime][kernel]") {
  for (const std::uint32_t n : {1U, 8U, 15U, 64U, 172U, 576U}) {
    Numbers numbers(41);
    const auto x = numbers.floats(n, 5.0F), weight = numbers.floats(n);
    for_each_isa([&](const KernelTable& table) {
      std::vector<float> out(n);
      table.rms_norm(x.data(), weight.data(), out.data(), n, 1e-5F);
      const float sum = dot_in_order(table.isa, x.data(), x.data(), n);
      const float inverse = 1.0F / std::sqrt(sum / static_cast<float>(n) + 1e-5F);
      double squares = 0.0;
      for (const float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
      for (std::uint32_t i = 0; i < n; ++i) {
        REQUIRE(bits_of(out[i]) == bits_of(x[i] * inverse * weight[i]));
        const double exact = static_cast<double>(x[i]) / std::sqrt(squares / n + 1e-5) *
                             static_cast<double>(weight[i]);
        REQUIRE(std::fabs(static_cast<double>(out[i]) - exact) <=
                (2.0 * n / 16.0 + 12.0) * kRounding * std::fabs(exact));
      }
      auto in_place = x;
      table.rms_norm(in_place.data(), weight.data(), in_place.data(), n, 1e-5F);
      CHECK(same_bits(in_place, out));
    });
  }
}

TEST_CASE("rope: pairs are rotated, each as by itself", "[runtime][kernel]") {
  for (const std::uint32_t dims : {2U, 8U, 24U, 64U, 80U}) {
    Numbers numbers(42);
    const auto head = numbers.floats(dims + 3);
    std::vector<float> cosines, sines;
    for (std::uint32_t i = 0; i < dims / 2; ++i) {
      const float angle = numbers.uniform(6.0F);
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
    // What the kernels take: of each dimension, the sine negative for the first of its pair.
    std::vector<float> adjacent_cosines(dims), adjacent_sines(dims), halves_cosines(dims),
        halves_sines(dims);
    for (std::uint32_t i = 0; i < dims / 2; ++i) {
      adjacent_cosines[2 * i] = adjacent_cosines[2 * i + 1] = cosines[i];
      halves_cosines[i] = halves_cosines[i + dims / 2] = cosines[i];
      adjacent_sines[2 * i] = halves_sines[i] = -sines[i];
      adjacent_sines[2 * i + 1] = halves_sines[i + dims / 2] = sines[i];
    }
    for_each_isa([&](const KernelTable& table) {
      auto adjacent = head, halves = head;
      table.rope_adjacent(adjacent.data(), adjacent_cosines.data(), adjacent_sines.data(), dims);
      table.rope_halves(halves.data(), halves_cosines.data(), halves_sines.data(), dims);
      const auto check_pair = [&](const std::vector<float>& out, std::size_t a, std::size_t b,
                                  std::size_t i) {
        REQUIRE(bits_of(out[a]) == bits_of(head[a] * cosines[i] - head[b] * sines[i]));
        REQUIRE(bits_of(out[b]) == bits_of(head[a] * sines[i] + head[b] * cosines[i]));
      };
      for (std::size_t i = 0; i < dims / 2; ++i) {
        check_pair(adjacent, 2 * i, 2 * i + 1, i);
        check_pair(halves, i, i + dims / 2, i);
      }
      for (std::size_t i = dims; i < dims + 3; ++i) {
        REQUIRE(adjacent[i] == head[i]);
        REQUIRE(halves[i] == head[i]);
      }
    });
  }
}

TEST_CASE("silu_multiply: near the double result and the same bits at every offset and length",
          "[runtime][kernel]") {
  constexpr std::size_t kCount = 1000;
  Numbers numbers(43);
  auto gate = numbers.floats(kCount, 20.0F);
  const auto up = numbers.floats(kCount, 3.0F);
  gate[0] = 0.0F;
  gate[1] = 200.0F;
  gate[2] = -200.0F;
  for_each_isa([&](const KernelTable& table) {
    std::vector<float> out(kCount);
    table.silu_multiply(gate.data(), up.data(), out.data(), kCount);
    CHECK(out[0] == 0.0F);
    CHECK(out[1] == gate[1] * up[1]);
    CHECK(out[2] == 0.0F);
    for (std::size_t i = 3; i < kCount; ++i) {
      const double g = static_cast<double>(gate[i]);
      const double exact = g / (1.0 + std::exp(-g)) * static_cast<double>(up[i]);
      // exp 4, addition 1, division 1, product 1 roundings.
      REQUIRE(std::fabs(static_cast<double>(out[i]) - exact) <= 8.0 * kRounding * std::fabs(exact));
      float alone = 0.0F;
      table.silu_multiply(&gate[i], &up[i], &alone, 1);
      REQUIRE(bits_of(alone) == bits_of(out[i]));
    }
    auto in_place = gate;
    table.silu_multiply(in_place.data(), up.data(), in_place.data(), kCount);
    CHECK(same_bits(in_place, out));
  });
}

TEST_CASE("gelu_multiply: near the double result and the same bits at every offset and length",
          "[runtime][kernel]") {
  constexpr std::size_t kCount = 1003;
  Numbers numbers(47);
  auto gate = numbers.floats(kCount, 8.0F);
  const auto up = numbers.floats(kCount, 3.0F);
  gate[0] = 0.0F;
  gate[1] = 200.0F;
  gate[2] = -200.0F;
  gate[3] = 3e15F;  // its cube is no float
  gate[4] = -3e15F;
  for_each_isa([&](const KernelTable& table) {
    std::vector<float> out(kCount);
    table.gelu_multiply(gate.data(), up.data(), out.data(), kCount);
    for (const int i : {0, 2, 4}) CHECK(out[i] == 0.0F);
    for (const int i : {1, 3}) CHECK(out[i] == gate[i] * up[i]);
    for (std::size_t i = 5; i < kCount; ++i) {
      const double g = static_cast<double>(gate[i]), factor = static_cast<double>(up[i]);
      const double u = std::sqrt(2.0 / 3.14159265358979324) * (g + 0.044715 * g * g * g);
      const double exact = 0.5 * g * (1.0 + std::tanh(u)) * factor;
      // 2u is off by 6 roundings, of which the exponential makes as many times 2u relatively; exp
      // 4, addition 1, division 1, product 1 roundings. The reference loses digits where tanh is
      // near -1, of numbers up to |g * factor|.
      const double relative = (7.0 + 12.0 * std::fabs(u)) * kRounding;
      const double lost = 1e-15 * std::fabs(g * factor);
      REQUIRE(std::fabs(static_cast<double>(out[i]) - exact) <= relative * std::fabs(exact) + lost);
      float alone = 0.0F;
      table.gelu_multiply(&gate[i], &up[i], &alone, 1);
      REQUIRE(bits_of(alone) == bits_of(out[i]));
    }
    auto in_place = gate;
    table.gelu_multiply(in_place.data(), up.data(), in_place.data(), kCount);
    CHECK(same_bits(in_place, out));
  });
}

TEST_CASE("add: adds n elements and touches no others", "[runtime][kernel]") {
  for (const std::size_t n : {0U, 1U, 15U, 16U, 17U, 100U}) {
    Numbers numbers(44);
    const auto x = numbers.floats(n + 1);
    const auto before = numbers.floats(n + 1);
    for_each_isa([&](const KernelTable& table) {
      auto acc = before;
      table.add(acc.data(), x.data(), n);
      for (std::size_t i = 0; i < n; ++i) REQUIRE(acc[i] == before[i] + x[i]);
      REQUIRE(acc[n] == before[n]);
    });
  }
}

TEST_CASE("store_kv: halves round to nearest even over the whole range", "[runtime][kernel]") {
  for_each_isa([](const KernelTable& table) {
    // Each finite half and its successor: themselves, just below, at and just above their midpoint.
    for (std::uint32_t h = 0; h < 0x7BFFU; ++h) {
      const auto low = static_cast<std::uint16_t>(h), high = static_cast<std::uint16_t>(h + 1);
      const float a = from_half(low), b = from_half(high), middle = a + (b - a) / 2.0F;
      const std::uint16_t even = h % 2 == 0 ? low : high;
      bool good = stored(table, KvElement::kF16, a) == low;
      good = good && stored(table, KvElement::kF16, middle) == even;
      good = good && stored(table, KvElement::kF16, std::nextafter(middle, 0.0F)) == low;
      good = good && stored(table, KvElement::kF16, std::nextafter(middle, kInfinity)) == high;
      good = good && stored(table, KvElement::kF16, -middle) == (even | 0x8000U);
      if (!good) FAIL("half " << h << " = " << a);
    }
    CHECK(stored(table, KvElement::kF16, 65519.0F) == 0x7BFFU);
    CHECK(stored(table, KvElement::kF16, 65520.0F) == 0x7C00U);
    CHECK(stored(table, KvElement::kF16, -kInfinity) == 0xFC00U);
    CHECK(stored(table, KvElement::kF16, 1e-40F) == 0U);
    CHECK((stored(table, KvElement::kF16, kNan) & 0x7FFFU) > 0x7C00U);
  });
}

TEST_CASE("store_kv: bf16 rounds to nearest even and keeps NaN", "[runtime][kernel]") {
  const auto of_bits = [](std::uint32_t bits) { return std::bit_cast<float>(bits); };
  for_each_isa([&](const KernelTable& table) {
    CHECK(stored(table, KvElement::kBf16, of_bits(0x3F808000U)) == 0x3F80U);  // tie, to even
    CHECK(stored(table, KvElement::kBf16, of_bits(0x3F818000U)) == 0x3F82U);  // tie, to even
    CHECK(stored(table, KvElement::kBf16, of_bits(0x3F808001U)) == 0x3F81U);
    CHECK(stored(table, KvElement::kBf16, of_bits(0x3F807FFFU)) == 0x3F80U);
    CHECK(stored(table, KvElement::kBf16, of_bits(0x7F7FFFFFU)) == 0x7F80U);  // rounds to infinity
    CHECK(stored(table, KvElement::kBf16, kInfinity) == 0x7F80U);
    CHECK(stored(table, KvElement::kBf16, -0.0F) == 0x8000U);
    // All of the payload is in the half that is cut off: without care this becomes infinity or
    // zero.
    CHECK((stored(table, KvElement::kBf16, of_bits(0x7F800001U)) & 0x7FFFU) > 0x7F80U);
    CHECK((stored(table, KvElement::kBf16, of_bits(0xFFFFFFFFU)) & 0x7FFFU) > 0x7F80U);
  });
}

TEST_CASE("store_kv: K goes to a column, V to a row, and nothing else changes",
          "[runtime][kernel]") {
  constexpr std::uint32_t kDim = 5, kTokens = 16, kSlot = 9;
  Numbers numbers(45);
  const auto k = numbers.floats(kDim), v = numbers.floats(kDim);
  for_each_isa([&](const KernelTable& table) {
    std::vector<float> k_tile(kDim * kTokens, -2.0F), v_tile(kDim * kTokens, -2.0F);
    table.store_kv(KvElement::kF32, k.data(), v.data(), reinterpret_cast<std::byte*>(k_tile.data()),
                   reinterpret_cast<std::byte*>(v_tile.data()), kDim, kTokens, kSlot);
    for (std::uint32_t slot = 0; slot < kTokens; ++slot) {
      for (std::uint32_t d = 0; d < kDim; ++d) {
        REQUIRE(k_tile[d * kTokens + slot] == (slot == kSlot ? k[d] : -2.0F));
        REQUIRE(v_tile[slot * kDim + d] == (slot == kSlot ? v[d] : -2.0F));
      }
    }
  });
}
