// Activations as int8 records.
#include "tests/runtime/kernels/quant_cases.h"

#include <cmath>
#include <limits>

using namespace kvasir::runtime;
using namespace kvasir::runtime::testing;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The definition, one block.
QuantRecord quantized(const float* x) {
  QuantRecord record = {};
  float amax = 0.0F;
  for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[i]));
  record.scale = amax / 127.0F;
  for (int i = 0; i < 32; ++i) {
    const float scaled = x[i] * (127.0F / amax);
    record.values[i] = static_cast<std::int8_t>(std::nearbyint(scaled));
    record.minus_halves[i / 16] -= record.values[i];
  }
  record.minus_sum = record.minus_halves[0] + record.minus_halves[1];
  record.scaled_sum = record.scale * static_cast<float>(-record.minus_sum);
  for (int half = 0; half < 2; ++half) {
    record.scaled_halves[half] = record.scale * static_cast<float>(-record.minus_halves[half]);
  }
  return record;
}

bool same_record(const QuantRecord& a, const QuantRecord& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace

TEST_CASE("quantize: every set gives the record of the definition", "[runtime][kernel]") {
  for (const float scale : {1.0F, 1e-30F, 1e30F, 3e38F, 1e-35F}) {
    const std::uint32_t k = 544;
    const auto x = Numbers(1).floats(std::size_t{3} * k, scale);
    for_each_isa([&](const KernelTable& table) {
      const QuantRows rows(table, x, k);
      CHECK(rows.bytes.guards_hold());
      std::size_t different = 0;
      for (std::uint32_t m = 0; m < 3; ++m) {
        for (std::uint32_t b = 0; b < k / 32; ++b) {
          different += !same_record(record_at(rows.row(m), b), quantized(&x[m * k + b * 32]));
        }
      }
      INFO("scale " << scale);
      CHECK(different == 0);
    });
  }
}

TEST_CASE("quantize: halves go to the even value, and the largest is 127 of either sign",
          "[runtime][kernel]") {
  std::vector<float> x(32, 0.0F);
  const float values[] = {127.0F, -127.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 126.5F, -126.5F};
  const int expected[] = {127, -127, 0, 2, 2, 0, -2, -2, 126, -126};
  std::copy(std::begin(values), std::end(values), x.begin());
  for_each_isa([&](const KernelTable& table) {
    const QuantRecord record = record_at(QuantRows(table, x, 32).row(0), 0);
    CHECK(record.scale == 1.0F);
    for (std::size_t i = 0; i < std::size(values); ++i) CHECK(record.values[i] == expected[i]);
  });
}

TEST_CASE("quantize: a block of zeros or of magnitudes below 2^-119 is zero", "[runtime][kernel]") {
  for (const float value : {0.0F, -0.0F, 1e-45F, -1e-40F, 0x1.fffffep-120F}) {
    const std::vector<float> x(64, value);
    for_each_isa([&](const KernelTable& table) {
      const QuantRows rows(table, x, 64);
      for (std::uint32_t b = 0; b < 2; ++b) {
        CHECK(same_record(record_at(rows.row(0), b), QuantRecord{}));
      }
    });
  }
  const std::vector<float> smallest(32, 0x1p-119F);
  for_each_isa([&](const KernelTable& table) {
    const QuantRecord record = record_at(QuantRows(table, smallest, 32).row(0), 0);
    CHECK(record.values[31] == 127);
    CHECK(std::isnormal(record.scale));
  });
}

TEST_CASE("quantize: a value that is not finite makes its block's scale NaN, and only its own",
          "[runtime][kernel]") {
  for (const float bad : {std::nanf(""), -std::nanf(""), kInfinity, -kInfinity}) {
    for (const std::uint32_t place : {0U, 15U, 16U, 31U}) {
      auto x = Numbers(2).floats(96);
      x[32 + place] = bad;
      for_each_isa([&](const KernelTable& table) {
        const QuantRows rows(table, x, 96);
        const QuantRecord record = record_at(rows.row(0), 1);
        CHECK(std::isnan(record.scale));
        CHECK(std::isnan(record.scaled_sum));
        CHECK(std::isnan(record.scaled_halves[0]));
        CHECK(std::isnan(record.scaled_halves[1]));
        CHECK(std::all_of(record.values, record.values + 32, [](int v) { return v == 0; }));
        CHECK(record.minus_sum == 0);
        CHECK(same_record(record_at(rows.row(0), 0), quantized(x.data())));
        CHECK(same_record(record_at(rows.row(0), 2), quantized(x.data() + 64)));
      });
    }
  }
}

TEST_CASE("quantize: rows are padded to an odd number of lines", "[runtime][kernel]") {
  for_each_isa([&](const KernelTable& table) {
    for (const std::uint32_t k : {32U, 64U, 576U, 1536U, 2048U, 8960U}) {
      const std::size_t bytes = table.quant->quantized_row_bytes(k);
      CHECK(bytes >= std::size_t{k} / 32 * 64);
      CHECK(bytes <= std::size_t{k} / 32 * 64 + 64);
      CHECK(bytes % 128 == 64);
    }
  });
}

TEST_CASE("quantize: gates have the bits of their activation followed by quantize_row",
          "[runtime][kernel]") {
  constexpr std::uint32_t kRows = 5, k = 160;
  auto gate = Numbers(3).floats(std::size_t{kRows} * k, 20.0F);
  const auto up = Numbers(4).floats(std::size_t{kRows} * k, 3.0F);
  gate[7] = -kInfinity;
  gate[40] = 1e30F;
  gate[70] = -200.0F;
  const auto check = [&](const KernelTable& table, auto multiply, auto multiply_quantize) {
    std::vector<float> product(gate.size());
    multiply(gate.data(), up.data(), product.data(), product.size());
    const QuantRows expected(table, product, k);
    const QuantRows rows(table, std::vector<float>(gate.size(), 1.0F), k);
    for (std::uint32_t block = 0; block < k / 32; ++block) {
      multiply_quantize(gate.data() + block * 32, up.data() + block * 32, k, kRows, rows.row(0),
                        rows.stride, k, block);
    }
    CHECK(rows.bytes.guards_hold());
    for (std::uint32_t m = 0; m < kRows; ++m) {
      for (std::uint32_t block = 0; block < k / 32; ++block) {
        INFO("row " << m << " block " << block);
        CHECK(same_record(record_at(rows.row(m), block), record_at(expected.row(m), block)));
      }
    }
  };
  for_each_isa([&](const KernelTable& table) {
    check(table, table.silu_multiply, table.quant->silu_multiply_quantize);
    check(table, table.gelu_multiply, table.quant->gelu_multiply_quantize);
  });
}
