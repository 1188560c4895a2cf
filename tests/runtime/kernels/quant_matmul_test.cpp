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
