#include "runtime/model/ggml_type.h"
#include "runtime/worker_team.h"
#include "tests/runtime/kernels/kernel_cases.h"
#include "tests/runtime/kernels/quant_cases.h"

#include <cblas.h>
#include <cmath>

using namespace kvasir::runtime;
using namespace kvasir::runtime::testing;

namespace {

constexpr GgmlType kAllTypes[] = {
    GgmlType::kF32,  GgmlType::kF16,  GgmlType::kBF16, GgmlType::kQ4_0,   GgmlType::kQ4_1,
    GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kQ8_0, GgmlType::kQ2_K,   GgmlType::kQ3_K,
    GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kIQ4_NL, GgmlType::kIQ4_XS};

/// Offsets of the f16 numbers in a block of the type (for F16 and BF16: of the element itself).
std::vector<std::size_t> f16_offsets(GgmlType type) {
  return type == GgmlType::kF32 ? std::vector<std::size_t>() : panel_f16_offsets(type);
}

/// Random blocks with scales of moderate size (f16 bits with an exponent of 2^-8 to 2^-5), of
/// either sign.
std::vector<std::byte> random_blocks(Numbers& numbers, GgmlType type, std::size_t num_elements) {
  const GgmlTypeInfo& info = type_info(type);
  const std::size_t num_blocks = num_elements / info.block_elements;
  std::vector<std::byte> blocks(num_blocks * info.block_bytes);
  for (std::byte& b : blocks) b = static_cast<std::byte>(numbers.bits() >> 24);
  for (std::size_t i = 0; i < num_blocks; ++i) {
    std::byte* block = blocks.data() + i * info.block_bytes;
    if (type == GgmlType::kF32) {
      const auto bits = bits_of(numbers.uniform());
      std::copy_n(reinterpret_cast<const std::byte*>(&bits), 4, block);
    }
    for (const std::size_t offset : f16_offsets(type)) {
      const std::uint32_t exponent = type == GgmlType::kBF16 ? 0x3C00 : 0x1C00;
      const std::uint32_t random = numbers.bits();
      const std::uint32_t bits = (random & 0x8000U) | (exponent + (random & 0xFFFU));
      block[offset] = static_cast<std::byte>(bits & 0xFFU);
      block[offset + 1] = static_cast<std::byte>(bits >> 8);
    }
  }
  return blocks;
}

/// A weight matrix with the same as floats, by the scalar set (which a golden test holds to the
/// reference).
struct Weights {
  Weights(GgmlType a_type, std::uint32_t a_rows, std::uint32_t a_k, std::uint32_t seed)
      : type(a_type), rows(a_rows), k(a_k) {
    Numbers numbers(seed);
    row_bytes = k / type_info(type).block_elements * type_info(type).block_bytes;
    blocks = random_blocks(numbers, type, std::size_t{rows} * k);
    floats.resize(std::size_t{rows} * k);
    kernels_for(Isa::kScalar).dequantize(type, blocks.data(), floats.data(), floats.size());
  }
  GgmlType type;
  std::uint32_t rows, k;
  std::size_t row_bytes = 0;
  std::vector<std::byte> blocks;
  std::vector<float> floats;  // [rows, k]
};

/// y[num_x, rows] of rows [begin, end), one task; the elements of other rows keep `fill`.
std::vector<float> multiply(const KernelTable& table, const Weights& w, const float* x,
                            std::size_t x_stride, std::uint32_t num_x, std::uint32_t begin,
                            std::uint32_t end, float fill = 0.0F) {
  std::vector<float> y(std::size_t{num_x} * w.rows, fill);
  std::vector<float> scratch(table.matmul_scratch_floats(w.k) + 16);
  const auto misaligned = reinterpret_cast<std::uintptr_t>(scratch.data()) % 64 / 4;
  MatmulTask task;
  task.type = w.type;
  task.weights = w.blocks.data();
  task.row_bytes = w.row_bytes;
  task.k = w.k;
  task.row_begin = begin;
  task.row_end = end;
  task.x = x;
  task.x_stride = x_stride;
  task.num_x = num_x;
  task.y = y.data();
  task.y_stride = w.rows;
  task.scratch = scratch.data() + (16 - misaligned) % 16;
  table.matmul(task);
  return y;
}

/// Every output within the rounding of its chain: k / 16 steps of at most two roundings, and four
/// of the fold.
void check_near_double(const Weights& w, const std::vector<float>& x, std::uint32_t num_x,
                       const std::vector<float>& y) {
  const double roundings = 2.0 * (w.k / 16 + 1) + 4.0;
  for (std::uint32_t m = 0; m < num_x; ++m) {
    for (std::uint32_t r = 0; r < w.rows; ++r) {
      double exact = 0.0, magnitude = 0.0;
      for (std::uint32_t i = 0; i < w.k; ++i) {
        const double product = static_cast<double>(w.floats[std::size_t{r} * w.k + i]) *
                               static_cast<double>(x[std::size_t{m} * w.k + i]);
        exact += product;
        magnitude += std::fabs(product);
      }
      const double error = std::fabs(static_cast<double>(y[std::size_t{m} * w.rows + r]) - exact);
      if (!(error <= roundings * kRounding * magnitude)) {
        FAIL("x row " << m << ", weight row " << r << ": error " << error << " of " << magnitude);
      }
    }
  }
}

std::uint32_t smallest_odd_k(GgmlType type) {
  return type_info(type).block_elements == 1 ? 172 : 3 * type_info(type).block_elements;
}

}  // namespace

TEST_CASE("dequantize: every set gives the bits of the scalar set", "[runtime][kernel]") {
  for (const GgmlType type : kAllTypes) {
    INFO(type_info(type).name);
    Numbers numbers(1);
    const std::size_t n =
        type_info(type).block_elements == 1 ? 1237 : 7 * type_info(type).block_elements;
    const auto blocks = random_blocks(numbers, type, n);
    std::vector<float> expected(n);
    kernels_for(Isa::kScalar).dequantize(type, blocks.data(), expected.data(), n);
    for_each_isa([&](const KernelTable& table) {
      std::vector<float> out(n + 1, -1.0F);
      table.dequantize(type, blocks.data(), out.data(), n);
      CHECK(out.back() == -1.0F);
      out.pop_back();
      CHECK(same_bits(out, expected));
    });
  }
}

TEST_CASE("matmul: every type is within the rounding of its chain of the double product",
          "[runtime][kernel]") {
  for (const GgmlType type : kAllTypes) {
    INFO(type_info(type).name);
    const Weights w(type, 11, smallest_odd_k(type), 2);
    Numbers numbers(3);
    for (const std::uint32_t num_x : {1U, 2U, 5U, 13U}) {
      const auto x = numbers.floats(std::size_t{num_x} * w.k);
      for_each_isa([&](const KernelTable& table) {
        check_near_double(w, x, num_x, multiply(table, w, x.data(), w.k, num_x, 0, w.rows));
      });
    }
  }
}

TEST_CASE("matmul: every output is the sixteen-lane chain, bit by bit, at any number of rows",
          "[runtime][kernel]") {
  struct Shape {
    GgmlType type;
    std::uint32_t k;
  };
  for (const Shape shape :
       {Shape{GgmlType::kF32, 1}, Shape{GgmlType::kF32, 15}, Shape{GgmlType::kF32, 172},
        Shape{GgmlType::kF16, 33}, Shape{GgmlType::kBF16, 97}, Shape{GgmlType::kQ4_1, 576},
        Shape{GgmlType::kQ8_0, 96}, Shape{GgmlType::kQ4_K, 512}}) {
    INFO(type_info(shape.type).name << " k " << shape.k);
    const Weights w(shape.type, 21, shape.k, 4);
    Numbers numbers(5);
    const auto x = numbers.floats(std::size_t{513} * w.k);
    for_each_isa([&](const KernelTable& table) {
      for (const std::uint32_t num_x : {1U, 2U, 3U, 4U, 5U, 7U, 64U, 513U}) {
        const auto y = multiply(table, w, x.data(), w.k, num_x, 0, w.rows);
        std::size_t different = 0;
        for (std::uint32_t m = 0; m < num_x; ++m) {
          for (std::uint32_t r = 0; r < w.rows; ++r) {
            const float expected = dot_in_order(table.isa, w.floats.data() + std::size_t{r} * w.k,
                                                x.data() + std::size_t{m} * w.k, w.k);
            different += bits_of(expected) != bits_of(y[std::size_t{m} * w.rows + r]);
          }
        }
        INFO(num_x << " rows");
        CHECK(different == 0);
      }
    });
  }
}

TEST_CASE("matmul: a row's bits do not depend on its neighbours, its slot or the row range",
          "[runtime][kernel]") {
  for (const GgmlType type : kAllTypes) {
    INFO(type_info(type).name);
    const Weights w(type, 37, smallest_odd_k(type), 6);
    Numbers numbers(7);
    const auto x = numbers.floats(std::size_t{64} * w.k, 3.0F);
    for_each_isa([&](const KernelTable& table) {
      const auto whole = multiply(table, w, x.data(), w.k, 64, 0, w.rows);
      for (const std::uint32_t m : {0U, 1U, 5U, 6U, 31U, 63U}) {
        const auto alone = multiply(table, w, x.data() + std::size_t{m} * w.k, w.k, 1, 0, w.rows);
        for (std::uint32_t r = 0; r < w.rows; ++r) {
          REQUIRE(bits_of(alone[r]) == bits_of(whole[std::size_t{m} * w.rows + r]));
        }
      }
      for (const std::uint32_t cut : {1U, 2U, 3U, 4U, 17U, 36U}) {
        const auto low = multiply(table, w, x.data(), w.k, 64, 0, cut, 0.5F);
        const auto high = multiply(table, w, x.data(), w.k, 64, cut, w.rows, 0.5F);
        for (std::uint32_t m = 0; m < 64; ++m) {
          for (std::uint32_t r = 0; r < w.rows; ++r) {
            const std::size_t i = std::size_t{m} * w.rows + r;
            REQUIRE(bits_of(r < cut ? low[i] : high[i]) == bits_of(whole[i]));
            REQUIRE((r < cut ? high[i] : low[i]) ==
                    0.5F);  // rows outside the range are not touched
          }
        }
      }
    });
  }
}

TEST_CASE("matmul: any number of threads gives the same bits", "[runtime][kernel]") {
  const Weights w(GgmlType::kQ4_1, 101, 288, 8);
  Numbers numbers(9);
  for_each_isa([&](const KernelTable& table) {
    for (const std::uint32_t num_x : {1U, 17U}) {
      const auto x = numbers.floats(std::size_t{num_x} * w.k);
      const auto expected = multiply(table, w, x.data(), w.k, num_x, 0, w.rows);
      for (const std::uint32_t num_threads : {1U, 2U, 3U, 7U}) {
        WorkerTeam team(num_threads);
        std::vector<std::vector<float>> parts(num_threads);
        team.run([&](std::uint32_t worker) {
          const WorkRange range = split_range(w.rows, 4, worker, num_threads);
          parts[worker] =
              multiply(table, w, x.data(), w.k, num_x, static_cast<std::uint32_t>(range.begin),
                       static_cast<std::uint32_t>(range.end));
        });
        std::vector<float> y(expected.size(), 0.0F);
        for (std::uint32_t worker = 0; worker < num_threads; ++worker) {
          const WorkRange range = split_range(w.rows, 4, worker, num_threads);
          for (std::size_t m = 0; m < num_x; ++m) {
            for (std::size_t r = range.begin; r < range.end; ++r) {
              y[m * w.rows + r] = parts[worker][m * w.rows + r];
            }
          }
        }
        CHECK(same_bits(y, expected));
      }
    }
  });
}

TEST_CASE("matmul: rows of x may be at any address and any stride", "[runtime][kernel]") {
  const Weights w(GgmlType::kF16, 9, 50, 10);
  Numbers numbers(11);
  const auto x = numbers.floats(std::size_t{5} * w.k);
  for_each_isa([&](const KernelTable& table) {
    const auto expected = multiply(table, w, x.data(), w.k, 5, 0, w.rows);
    for (const std::size_t offset : {1U, 2U, 3U}) {
      // NaN between the rows: reading it would show.
      std::vector<float> spread(offset + 5 * (w.k + 7), std::nanf(""));
      for (std::size_t m = 0; m < 5; ++m) {
        for (std::size_t i = 0; i < w.k; ++i) {
          spread[offset + m * (w.k + 7) + i] = x[m * w.k + i];
        }
      }
      CHECK(same_bits(multiply(table, w, spread.data() + offset, w.k + 7, 5, 0, w.rows), expected));
    }
  });
}

TEST_CASE("matmul: AVX2 and AVX-512 agree to the bit", "[runtime][kernel]") {
  if (!cpu_supports(Isa::kAvx512)) return;
  for (const GgmlType type : kAllTypes) {
    INFO(type_info(type).name);
    const Weights w(type, 13, smallest_odd_k(type), 12);
    Numbers numbers(13);
    const auto x = numbers.floats(std::size_t{9} * w.k);
    for (const std::uint32_t num_x : {1U, 9U}) {
      CHECK(same_bits(multiply(kernels_for(Isa::kAvx2), w, x.data(), w.k, num_x, 0, w.rows),
                      multiply(kernels_for(Isa::kAvx512), w, x.data(), w.k, num_x, 0, w.rows)));
    }
  }
}

TEST_CASE("matmul: OpenBLAS computes the same product", "[runtime][kernel]") {
  const Weights w(GgmlType::kQ4_1, 70, 576, 14);
  constexpr std::uint32_t kNumX = 33;
  Numbers numbers(15);
  const auto x = numbers.floats(std::size_t{kNumX} * w.k);
  std::vector<float> oracle(std::size_t{kNumX} * w.rows);
  const int k = static_cast<int>(w.k), rows = static_cast<int>(w.rows);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, kNumX, rows, k, 1.0F, x.data(), k,
              w.floats.data(), k, 0.0F, oracle.data(), rows);
  for_each_isa([&](const KernelTable& table) {
    const auto y = multiply(table, w, x.data(), w.k, kNumX, 0, w.rows);
    for (std::size_t i = 0; i < y.size(); ++i) {
      double magnitude = 0.0;
      for (std::size_t j = 0; j < w.k; ++j) {
        magnitude += std::fabs(static_cast<double>(w.floats[i % w.rows * w.k + j]) *
                               static_cast<double>(x[i / w.rows * w.k + j]));
      }
      // Ours: 2 * 36 + 4 roundings; theirs: at most one for each of the k terms.
      const double bound = (2.0 * w.k / 16.0 + 4.0 + w.k) * kRounding * magnitude;
      REQUIRE(std::fabs(static_cast<double>(y[i]) - static_cast<double>(oracle[i])) <= bound);
    }
  });
}
