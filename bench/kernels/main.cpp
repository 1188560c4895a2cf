// Speed of the kernels alone, on one thread: products by weight type and number of x rows (those of
// int8 in quant.cpp), and attention (attention.cpp). Prints medians of five timed batches with
// their spread. Usage: kvasir_bench_kernels [ISA [TYPE]]; nothing else should run meanwhile.

#include "bench/kernels/attention.h"
#include "bench/kernels/quant.h"
#include "runtime/kernels/dispatch.h"
#include "runtime/model/ggml_type.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <time.h>
#include <vector>

namespace {

using namespace kvasir::runtime;

struct Timing {
  double median_s = 0.0, spread = 0.0;  // spread: (largest - smallest) / median
};

/// CPU time of this thread: neighbours who take the core do not count (those who take the caches
/// do).
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Seconds of one call, from five batches of at least 10 ms.
Timing measure(const std::function<void()>& call) {
  const auto seconds_of = [&](int calls) {
    const double start = cpu_seconds();
    for (int i = 0; i < calls; ++i) call();
    return cpu_seconds() - start;
  };
  const int calls = std::max(1, static_cast<int>(0.01 / std::max(seconds_of(1), 1e-7)));
  std::array<double, 5> times{};
  for (double& time : times) time = seconds_of(calls) / calls;
  std::sort(times.begin(), times.end());
  return {times[2], (times[4] - times[0]) / times[2]};
}

float* aligned(std::vector<float>& buffer) {
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
  return buffer.data() + (64 - address % 64) % 64 / 4;
}

void bench_matmul(const KernelTable& table, GgmlType type, std::uint32_t rows, std::uint32_t k,
                  std::uint32_t num_x) {
  const GgmlTypeInfo& info = type_info(type);
  const std::size_t row_bytes = std::size_t{k} / info.block_elements * info.block_bytes;
  std::vector<std::byte> weights(rows * row_bytes, std::byte{0x21});
  std::vector<float> x(std::size_t{num_x} * k, 0.5F), y(std::size_t{num_x} * rows);
  std::vector<float> scratch(table.matmul_scratch_floats(k) + 16);
  MatmulTask task;
  task.type = type;
  task.weights = weights.data();
  task.row_bytes = row_bytes;
  task.k = k;
  task.row_end = rows;
  task.x = x.data();
  task.x_stride = k;
  task.num_x = num_x;
  task.y = y.data();
  task.y_stride = rows;
  task.scratch = aligned(scratch);
  const Timing timing = measure([&] { table.matmul(task); });
  const double flops = 2.0 * rows * k * num_x;
  std::printf(
      "%-7s matmul %-7s %5u x %5u, %3u x rows: %8.1f us +-%2.0f%% %7.1f GFLOP/s %6.2f GB/s\n",
      table.name, std::string(info.name).c_str(), rows, k, num_x, timing.median_s * 1e6,
      timing.spread * 50.0, flops / timing.median_s * 1e-9,
      static_cast<double>(rows * row_bytes) / timing.median_s * 1e-9);
}

void bench_set(const KernelTable& table, const std::string& only_type) {
  for (const GgmlType type :
       {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0, GgmlType::kQ4_0,
        GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kQ2_K, GgmlType::kQ3_K,
        GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kIQ4_NL, GgmlType::kIQ4_XS}) {
    if (!only_type.empty() && only_type != type_info(type).name) continue;
    for (const std::uint32_t num_x : {1U, 8U, 64U, 512U})
      bench_matmul(table, type, 1536, 1536, num_x);
  }
  kvasir::bench::bench_quant(table, only_type);
  kvasir::bench::bench_attention(table);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only_type = argc > 2 ? argv[2] : "";
  for (const Isa isa : compiled_isas()) {
    if (!cpu_supports(isa)) continue;
    if (argc > 1 && isa_name(isa) != argv[1]) continue;
    bench_set(kernels_for(isa), only_type);
  }
  return EXIT_SUCCESS;
}
