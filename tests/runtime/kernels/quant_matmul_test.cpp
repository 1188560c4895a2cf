#include "tests/runtime/kernels/quant_cases.h"

#include <cmath>
#include <limits>

using namespace kvasir::runtime;
using namespace kvasir::runtime::testing;

namespace {

struct ByteRange {
  std::size_t begin = 0, end = 0;
};

/// Where the codes lie in a block of the file, for the types with a minimum term.
ByteRange code_bytes(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1:
      return {4, type_info(type).block_bytes};
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K:
      return {16, type_info(type).block_bytes};
    case GgmlType::kQ2_K:
      return {16, 80};
    default:
      return {};
  }
}

/// The minimum term of every weight: what it would be if all codes were zero. Zeros for the types
/// without.
std::vector<float> minimum_terms(const PanelWeights& w) {
  std::vector<float> minimums(w.floats.size(), 0.0F);
  const ByteRange codes = code_bytes(w.type);
  if (codes.end == 0) return minimums;
  std::vector<std::byte> blocks = w.blocks;
  for (std::size_t at = 0; at < blocks.size(); at += type_info(w.type).block_bytes) {
    std::fill(blocks.data() + at + codes.begin, blocks.data() + at + codes.end, std::byte{0});
  }
  kernels_for(Isa::kScalar).dequantize(w.type, blocks.data(), minimums.data(), minimums.size());
  return minimums;
}

bool has_halves(GgmlType type) {
  return type == GgmlType::kQ2_K || type == GgmlType::kQ3_K || type == GgmlType::kQ6_K;
}

/// Every output within the rounding of its chain of the double product of weights and quantised
/// activations. A chain of n steps rounds each term at most n times (twice where multiply and add
/// round apart, and twice as often with a minimum term), and the factors of a term twice.
void check_near_double(const PanelWeights& w, const QuantRows& x, const std::vector<float>& y) {
  const double steps = w.k / 32 * (has_halves(w.type) ? 2 : 1);
  const double roundings = 4.0 * steps + 2.0;
  const auto minimums = minimum_terms(w);
  for (std::uint32_t m = 0; m < x.num_x; ++m) {
    std::vector<double> values(w.k);
    for (std::uint32_t i = 0; i < w.k; ++i) {
      const QuantRecord record = record_at(x.row(m), i / 32);
      values[i] = double{record.scale} * record.values[i % 32];
    }
    for (std::uint32_t r = 0; r < w.rows; ++r) {
      double exact = 0.0, magnitude = 0.0;
      for (std::uint32_t i = 0; i < w.k; ++i) {
        const double weight = double{w.floats[std::size_t{r} * w.k + i]};
        exact += weight * values[i];
        // The parts of a weight are multiplied apart and may be larger than the weight.
        const double minimum = double{minimums[std::size_t{r} * w.k + i]};
        magnitude += (std::fabs(weight - minimum) + std::fabs(minimum)) * std::fabs(values[i]);
      }
      // The weights themselves were rounded to float once or twice: that is part of the reference.
      const double error = std::fabs(double{y[std::size_t{m} * w.rows + r]} - exact);
      if (!(error <= (roundings + 3.0) * kRounding * magnitude)) {
        FAIL("x row " << m << ", weight row " << r << ": error " << error << " of " << magnitude);
      }
    }
  }
}

/// One block, and several; not a multiple of 256 where the type allows.
std::vector<std::uint32_t> odd_ks(GgmlType type) {
  if (type_info(type).block_elements == 256) return {256, 768, 1792};
  return {32, 96, 544, 1568};
}

std::uint32_t some_k(GgmlType type) { return type_info(type).block_elements == 256 ? 1024 : 1056; }

}  // namespace

TEST_CASE("quant matmul: every set has code of its own, named after its dot products",
          "[runtime][kernel]") {
  const auto name_of = [](Isa isa) -> std::string {
    switch (isa) {
      case Isa::kScalar:
        return "scalar";
      case Isa::kAvx2:
        return "avx2";
      case Isa::kAvxVnni:
        return "avxvnni";
      case Isa::kAvx512:
        return "avx512vnni";
    }
    return "";
  };
  for (const Isa isa : runnable_isas()) {
    const QuantKernels& own = *kernels_for(isa).quant;
    CHECK(own.name == name_of(isa));
    for (const Isa other : runnable_isas()) {
      if (other != isa) CHECK(own.matmul != kernels_for(other).quant->matmul);
    }
  }
}

TEST_CASE("quant matmul: every type is within the rounding of its chain of the double product",
          "[runtime][kernel]") {
  for (const GgmlType type : kPanelTypes) {
    INFO(type_info(type).name);
    std::uint32_t seed = 20;
    for (const std::uint32_t k : odd_ks(type)) {
      for (const std::uint32_t rows : {1U, 31U, 33U, 50U}) {
        INFO(rows << " rows, k " << k);
        const PanelWeights w(type, rows, k, ++seed);
        for (const std::uint32_t num_x : {1U, 2U, 3U, 5U, 6U, 7U, 13U}) {
          const auto x = Numbers(++seed).floats(std::size_t{num_x} * k);
          for_each_isa([&](const KernelTable& table) {
            const QuantRows quantized(table, x, k);
            check_near_double(w, quantized, quant_multiply(table, w, quantized));
          });
        }
      }
    }
  }
}

TEST_CASE("quant matmul: a row has the same bits among any number of rows", "[runtime][kernel]") {
  for (const GgmlType type : kPanelTypes) {
    INFO(type_info(type).name);
    const PanelWeights w(type, 75, some_k(type), 3);
    const auto x = Numbers(4).floats(std::size_t{513} * w.k, 3.0F);
    for_each_isa([&](const KernelTable& table) {
      const QuantRows quantized(table, x, w.k);
      const std::uint32_t most = table.isa == Isa::kScalar ? 65U : 513U;
      const auto whole = quant_multiply(table, w, quantized, {.num_x = most});
      for (const std::uint32_t num_x : {1U, 2U, 4U, 6U, 7U, 8U, 13U, 64U}) {
        for (const std::uint32_t first : {0U, 1U, most - num_x}) {
          const auto some = quant_multiply(table, w, quantized, {.first_x = first, .num_x = num_x});
          const std::vector<float> expected(whole.begin() + std::ptrdiff_t{first} * w.rows,
                                            whole.begin() + std::ptrdiff_t{first + num_x} * w.rows);
          INFO(num_x << " rows from " << first);
          CHECK(same_bits(some, expected));
        }
      }
    });
  }
}

TEST_CASE("quant matmul: the SIMD sets agree to the bit", "[runtime][kernel]") {
  if (!cpu_supports(Isa::kAvx2)) return;
  for (const GgmlType type : kPanelTypes) {
    INFO(type_info(type).name);
    const PanelWeights w(type, 45, some_k(type), 5);
    const auto x = Numbers(6).floats(std::size_t{21} * w.k);
    for (const std::uint32_t num_x : {1U, 2U, 5U, 21U}) {
      const KernelTable& avx2 = kernels_for(Isa::kAvx2);
      const QuantRows quantized(avx2, x, w.k);
      const auto expected = quant_multiply(avx2, w, quantized, {.num_x = num_x});
      for (const Isa isa : {Isa::kAvxVnni, Isa::kAvx512}) {
        if (!cpu_supports(isa)) continue;
        INFO(isa_name(isa) << ", " << num_x << " rows");
        CHECK(
            same_bits(quant_multiply(kernels_for(isa), w, quantized, {.num_x = num_x}), expected));
      }
    }
  }
}

TEST_CASE("quant matmul: any range of panels gives the same bits and writes nothing else",
          "[runtime][kernel]") {
  for (const GgmlType type : {GgmlType::kQ4_1, GgmlType::kQ8_0, GgmlType::kQ6_K}) {
    INFO(type_info(type).name);
    const PanelWeights w(type, 141, some_k(type), 7);  // five panels, the last of 13 rows
    const auto x = Numbers(8).floats(std::size_t{100} * w.k);
    for_each_isa([&](const KernelTable& table) {
      const QuantRows quantized(table, x, w.k);
      for (const std::uint32_t num_x : {1U, 7U, 100U}) {
        const auto whole = quant_multiply(table, w, quantized, {.num_x = num_x});
        for (const auto& [begin, end] : {std::pair{0U, 2U}, {2U, 3U}, {3U, 5U}, {4U, 5U}}) {
          INFO("panels " << begin << " to " << end << ", " << num_x << " rows");
          constexpr std::uint32_t kPadding = 5;
          constexpr float kFill = -7.25F;
          const auto part = quant_multiply(table, w, quantized,
                                           {.panel_begin = begin,
                                            .panel_end = end,
                                            .num_x = num_x,
                                            .fill = kFill,
                                            .padding = kPadding,
                                            .next = end < 5 ? w.panels->data() : nullptr});
          const std::uint32_t rows = std::min(end * kPanelRows, w.rows) - begin * kPanelRows;
          REQUIRE(part.size() == std::size_t{num_x} * (rows + kPadding));
          std::size_t different = 0;
          for (std::uint32_t m = 0; m < num_x; ++m) {
            for (std::uint32_t r = 0; r < rows + kPadding; ++r) {
              const float expected =
                  r < rows ? whole[std::size_t{m} * w.rows + begin * kPanelRows + r] : kFill;
              different +=
                  bits_of(part[std::size_t{m} * (rows + kPadding) + r]) != bits_of(expected);
            }
          }
          CHECK(different == 0);
        }
      }
    });
  }
}

TEST_CASE("quant matmul: bias is added to the chain, then the sum to what y holds",
          "[runtime][kernel]") {
  const PanelWeights w(GgmlType::kQ4_0, 77, 256, 9);
  const auto x = Numbers(10).floats(std::size_t{9} * w.k);
  const auto bias = Numbers(11).floats(w.rows, 5.0F);
  constexpr float kHeld = 0.3F;
  for_each_isa([&](const KernelTable& table) {
    const QuantRows quantized(table, x, w.k);
    for (const std::uint32_t num_x : {1U, 9U}) {
      const auto plain = quant_multiply(table, w, quantized, {.num_x = num_x});
      for (const bool has_bias : {false, true}) {
        for (const bool accumulate : {false, true}) {
          std::vector<float> expected = plain;
          for (std::size_t i = 0; i < expected.size(); ++i) {
            if (has_bias) expected[i] = expected[i] + bias[i % w.rows];
            if (accumulate) expected[i] = kHeld + expected[i];
          }
          INFO(num_x << " rows, bias " << has_bias << ", accumulate " << accumulate);
          CHECK(same_bits(quant_multiply(table, w, quantized,
                                         {.num_x = num_x,
                                          .bias = has_bias ? bias.data() : nullptr,
                                          .accumulate = accumulate,
                                          .fill = kHeld}),
                          expected));
        }
      }
    }
  });
}

TEST_CASE("quant matmul: no dot product saturates, with all bits set or clear and x at its ends",
          "[runtime][kernel]") {
  for (const GgmlType type : kPanelTypes) {
    for (const int byte : {0x00, 0xFF, 0x80, 0x7F}) {
      PanelWeights w(type, 34, some_k(type), 14);
      for (std::byte& b : w.blocks) b = static_cast<std::byte>(byte);
      for (std::size_t at = 0; at < w.blocks.size(); at += type_info(type).block_bytes) {
        for (const std::size_t offset : panel_f16_offsets(type)) {
          put_half(w.blocks.data() + at + offset, 0x3C00);  // 1
        }
      }
      w.pack();
      for (const int sign : {1, -1}) {
        INFO(type_info(type).name << " bytes " << byte << " sign " << sign);
        const std::vector<float> x(std::size_t{7} * w.k, static_cast<float>(sign) * 127.0F);
        for_each_isa([&](const KernelTable& table) {
          const QuantRows quantized(table, x, w.k);
          REQUIRE(record_at(quantized.row(0), 0).values[0] == sign * 127);
          check_near_double(w, quantized, quant_multiply(table, w, quantized));
        });
      }
    }
  }
}

TEST_CASE("quant matmul: NaN and infinity show in every output they belong to, and in no other",
          "[runtime][kernel]") {
  for (const GgmlType type : kPanelTypes) {
    INFO(type_info(type).name);
    PanelWeights w(type, 40, some_k(type), 15);
    constexpr std::uint32_t kBadX = 2, kBadRow = 33;
    auto x = Numbers(16).floats(std::size_t{8} * w.k);
    x[std::size_t{kBadX} * w.k + 45] = std::numeric_limits<float>::infinity();
    put_half(w.blocks.data() + kBadRow * w.row_bytes + panel_f16_offsets(type)[0], 0x7E00);  // NaN
    w.pack();
    for_each_isa([&](const KernelTable& table) {
      const QuantRows quantized(table, x, w.k);
      const auto y = quant_multiply(table, w, quantized);
      std::size_t wrong = 0;
      for (std::uint32_t m = 0; m < 8; ++m) {
        for (std::uint32_t r = 0; r < w.rows; ++r) {
          const bool should_be_nan = m == kBadX || r == kBadRow;
          wrong += std::isnan(y[std::size_t{m} * w.rows + r]) != should_be_nan;
        }
      }
      CHECK(wrong == 0);
    });
  }
}

TEST_CASE("quant matmul: zero weights and zero activations give zeros", "[runtime][kernel]") {
  for (const GgmlType type : kPanelTypes) {
    PanelWeights w(type, 3, 256, 17);
    const std::vector<float> zeros(std::size_t{2} * w.k, 0.0F);
    for_each_isa([&](const KernelTable& table) {
      for (const float y : quant_multiply(table, w, QuantRows(table, zeros, w.k))) CHECK(y == 0.0F);
    });
    std::fill(w.blocks.begin(), w.blocks.end(), std::byte{0});
    w.pack();
    const auto x = Numbers(18).floats(std::size_t{2} * w.k);
    for_each_isa([&](const KernelTable& table) {
      for (const float y : quant_multiply(table, w, QuantRows(table, x, w.k))) CHECK(y == 0.0F);
    });
  }
}

TEST_CASE("quant matmul: a long k is one chain at any number of rows", "[runtime][kernel]") {
  // 280 blocks: several chunks of k where codes are unpacked, several of x.
  for (const GgmlType type : {GgmlType::kQ4_K, GgmlType::kQ6_K, GgmlType::kQ8_0}) {
    INFO(type_info(type).name);
    const PanelWeights w(type, 33, 8960, 19);
    const auto x = Numbers(20).floats(std::size_t{130} * w.k);
    for_each_isa([&](const KernelTable& table) {
      if (table.isa == Isa::kScalar) return;
      const QuantRows quantized(table, x, w.k);
      const auto whole = quant_multiply(table, w, quantized);
      for (const std::uint32_t m : {0U, 47U, 48U, 129U}) {
        const auto alone = quant_multiply(table, w, quantized, {.first_x = m, .num_x = 1});
        const std::vector<float> expected(whole.begin() + std::ptrdiff_t{m} * w.rows,
                                          whole.begin() + std::ptrdiff_t{m + 1} * w.rows);
        CHECK(same_bits(alone, expected));
      }
    });
  }
}
