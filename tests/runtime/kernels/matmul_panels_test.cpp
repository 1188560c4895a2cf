// Float panels: every output is the documented chain, to the bit, at any size and in any company.
#include "runtime/kernels/dispatch.h"
#include "runtime/kernels/float_panels.h"
#include "tests/runtime/kernels/kernel_cases.h"

#include <cmath>
#include <cstring>
#include <vector>

using namespace kvasir::runtime;
using namespace kvasir::runtime::testing;

namespace {

constexpr GgmlType kTypes[] = {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16};
constexpr float kCanary = -777.0F;

struct Weights {
  Weights(GgmlType a_type, std::uint32_t a_rows, std::uint32_t a_k)
      : type(a_type), rows(a_rows), k(a_k) {
    Numbers numbers(rows * 131 + k);
    const std::size_t element = type_info(type).block_bytes;
    std::vector<std::byte> stored(std::size_t{rows} * k * element);
    for (std::size_t i = 0; i < std::size_t{rows} * k; ++i) {
      // The upper half of a float near 1 is a bf16; the bits of an f16 near 1 are drawn directly.
      const float value = numbers.uniform();
      std::uint32_t bits = bits_of(value);
      if (type == GgmlType::kBF16) bits >>= 16;
      if (type == GgmlType::kF16) bits = (numbers.bits() & 0x83FFU) | 0x3800U;
      std::memcpy(&stored[i * element], &bits, element);
    }
    floats.resize(std::size_t{rows} * k);
    kernels_for(Isa::kScalar).dequantize(type, stored.data(), floats.data(), floats.size());
    const std::size_t bytes = float_panel_bytes(type, k);
    panels.resize((rows + 31) / 32 * bytes);
    for (std::uint32_t row = 0; row < rows; row += 32) {
      pack_float_panel(type, &stored[std::size_t{row} * k * element], k * element,
                       std::min(32U, rows - row), k, &panels[row / 32 * bytes]);
    }
  }
  GgmlType type;
  std::uint32_t rows, k;
  std::vector<float> floats;  // [rows, k]
  std::vector<std::byte> panels;
};

float chain(const KernelTable& table, const float* w, const float* x, std::uint32_t k) {
  float sum = 0.0F;
  for (std::uint32_t i = 0; i < k; ++i) {
    sum = table.isa == Isa::kScalar ? w[i] * x[i] + sum : std::fma(w[i], x[i], sum);
  }
  return sum;
}

}  // namespace

TEST_CASE("matmul_panels: every output is its chain, and nothing else is written",
          "[runtime][kernel]") {
  for (const GgmlType type : kTypes) {
    for (const std::uint32_t rows : {1U, 31U, 33U, 64U, 100U}) {
      for (const std::uint32_t k : {1U, 2U, 17U, 100U}) {
        const Weights weights(type, rows, k);
        for (const std::uint32_t num_x : {1U, 2U, 3U, 5U, 6U, 7U, 12U, 13U, 25U}) {
          Numbers numbers(num_x);
          const std::size_t x_stride = k + 3;
          const auto x = numbers.floats(num_x * x_stride);
          const auto bias = numbers.floats(rows);
          const std::uint32_t first = rows > 32 ? 32 : 0;
          const std::size_t y_stride = rows - first + 5;
          const auto before = numbers.floats(num_x * y_stride);
          for_each_isa([&](const KernelTable& table) {
            for (const bool adds : {false, true}) {
              auto y = adds ? before : std::vector<float>(before.size(), kCanary);
              MatmulTask task;
              task.type = type;
              task.weights = weights.panels.data();
              task.k = k;
              task.row_begin = first;
              task.row_end = rows;
              task.x = x.data();
              task.x_stride = x_stride;
              task.num_x = num_x;
              task.y = y.data();
              task.y_stride = y_stride;
              task.y_first_row = first;
              task.bias = adds ? bias.data() : nullptr;
              task.accumulate = adds;
              table.matmul_panels(task);
              for (std::uint32_t m = 0; m < num_x; ++m) {
                for (std::uint32_t r = first; r < rows; ++r) {
                  float expected =
                      chain(table, &weights.floats[std::size_t{r} * k], &x[m * x_stride], k);
                  const std::size_t at = m * y_stride + r - first;
                  if (adds) expected = before[at] + (expected + bias[r]);
                  if (bits_of(y[at]) != bits_of(expected)) {
                    FAIL("type " << type_info(type).name << ", row " << r << ", x " << m << " of "
                                 << num_x << ", k " << k << ": " << y[at] << ", not " << expected);
                  }
                }
                for (std::size_t at = m * y_stride + rows - first; at < (m + 1) * y_stride; ++at) {
                  REQUIRE(bits_of(y[at]) == bits_of(adds ? before[at] : kCanary));
                }
              }
            }
          });
        }
      }
    }
  }
}

TEST_CASE("matmul_panels: a row that a panel lacks does not reach the others",
          "[runtime][kernel]") {
  // Infinite inputs times the zero rows of an unfilled panel are NaN, in lanes that nobody reads.
  const Weights weights(GgmlType::kF16, 5, 8);
  const std::vector<float> x(8, std::numeric_limits<float>::infinity());
  for_each_isa([&](const KernelTable& table) {
    std::vector<float> y(8, kCanary);
    MatmulTask task;
    task.type = weights.type;
    task.weights = weights.panels.data();
    task.k = 8;
    task.row_end = 5;
    task.x = x.data();
    task.x_stride = 8;
    task.num_x = 1;
    task.y = y.data();
    task.y_stride = 8;
    table.matmul_panels(task);
    for (std::size_t r = 5; r < 8; ++r) CHECK(y[r] == kCanary);
  });
}
