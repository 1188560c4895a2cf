#include "bench/kernels/quant.h"

#include "runtime/kernels/panels.h"
#include "runtime/model/ggml_type.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <time.h>
#include <vector>

namespace kvasir::bench {
namespace {

using namespace kvasir::runtime;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<std::byte, Free>;

Bytes aligned_bytes(std::size_t size) {
  return Bytes(static_cast<std::byte*>(std::aligned_alloc(64, (size + 64) / 64 * 64)));
}

/// CPU time of this thread.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Several matrices of one shape, together more than the caches hold: as a model's layers are.
struct Matrices {
  Matrices(GgmlType a_type, std::uint32_t a_rows, std::uint32_t a_k)
      : type(a_type), rows(a_rows), k(a_k), matrix_bytes(num_panels(rows) * panel_bytes(type, k)) {
    constexpr std::size_t kEnough = std::size_t{96} << 20;
    count = static_cast<std::uint32_t>(kEnough / matrix_bytes + 1);
    panels = aligned_bytes(count * matrix_bytes);
    const std::size_t row_bytes =
        std::size_t{k} / type_info(type).block_elements * type_info(type).block_bytes;
    const std::vector<std::byte> file(row_bytes * kPanelRows, std::byte{0x21});
    for (std::size_t at = 0; at < count * matrix_bytes; at += panel_bytes(type, k)) {
      pack_panel(type, file.data(), row_bytes, kPanelRows, k, panels.get() + at);
    }
  }
  GgmlType type;
  std::uint32_t rows, k;
  std::size_t matrix_bytes;
  std::uint32_t count = 0;
  Bytes panels;
};

void bench_shape(const KernelTable& table, const Matrices& w, std::uint32_t num_x) {
  const QuantKernels& quant = *table.quant;
  const std::size_t stride = quant.quantized_row_bytes(w.k);
  const Bytes x = aligned_bytes(num_x * stride), scratch = aligned_bytes(quant.scratch_bytes(w.k));
  std::vector<float> row(w.k), y(std::size_t{num_x} * w.rows);
  for (std::uint32_t i = 0; i < w.k; ++i) row[i] = static_cast<float>(i % 37) - 18.0F;
  for (std::uint32_t m = 0; m < num_x; ++m) {
    quant.quantize_row(row.data(), w.k, x.get() + m * stride);
  }
  const auto multiply = [&](std::uint32_t i) {
    QuantMatmulTask task;
    task.type = w.type;
    task.panels = w.panels.get() + i * w.matrix_bytes;
    task.k = w.k;
    task.num_rows = w.rows;
    task.panel_end = num_panels(w.rows);
    task.x = x.get();
    task.x_stride = stride;
    task.num_x = num_x;
    task.y = y.data();
    task.y_stride = w.rows;
    task.next = w.panels.get() + (i + 1) % w.count * w.matrix_bytes;
    task.scratch = scratch.get();
    quant.matmul(task);
  };
  const double ops = 2.0 * w.rows * w.k * num_x;
  const auto calls =
      static_cast<std::uint32_t>(std::clamp(4e9 / ops, 1.0, static_cast<double>(w.count)));
  std::array<double, 5> times{};
  for (double& time : times) {
    const double start = cpu_seconds();
    for (std::uint32_t i = 0; i < calls; ++i) multiply(i);
    time = (cpu_seconds() - start) / calls;
  }
  std::sort(times.begin(), times.end());
  std::printf("%-7s quant   %-7s %5u x %5u, %3u x rows: %8.1f us +-%2.0f%% %7.1f GOPS %6.2f GB/s\n",
              table.name, std::string(type_info(w.type).name).c_str(), w.rows, w.k, num_x,
              times[2] * 1e6, (times[4] - times[0]) / times[2] * 50.0, ops / times[2] * 1e-9,
              static_cast<double>(w.matrix_bytes) / times[2] * 1e-9);
}

}  // namespace

void bench_quant(const KernelTable& table, const std::string& only_type) {
  struct Shape {
    std::uint32_t rows, k;
  };
  for (const GgmlType type :
       {GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kQ8_0,
        GgmlType::kQ2_K, GgmlType::kQ3_K, GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K,
        GgmlType::kIQ4_NL, GgmlType::kIQ4_XS}) {
    if (!only_type.empty() && only_type != type_info(type).name) continue;
    for (const Shape shape : {Shape{3072, 576}, Shape{576, 1536}, Shape{1536, 8960}}) {
      if (shape.k % type_info(type).block_elements != 0) continue;
      const Matrices w(type, shape.rows, shape.k);
      for (const std::uint32_t num_x : {1U, 2U, 4U, 8U, 16U, 32U, 64U, 512U}) {
        bench_shape(table, w, num_x);
      }
    }
  }
}

}  // namespace kvasir::bench
