// The limits of this machine as a table: kvasir_bench_roofline [THREADS [MIB]...]. Each set that
// the CPU has is measured; nothing else should run meanwhile.
#include "bench/roofline/roofline.h"
#include "runtime/kernels/dispatch.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using namespace kvasir;

void print_rate(const char* name, const roofline::Rate& rate, const char* unit) {
  std::printf("  %-16s %8.1f %s (%.1f to %.1f)\n", name, rate.median / 1e9, unit, rate.min / 1e9,
              rate.max / 1e9);
}

void print_roofline(const roofline::RooflineOptions& options) {
  const SteadyClock clock;
  const roofline::Roofline measured = roofline::measure_roofline(options, clock);
  std::printf("%s, %u threads%s\n", std::string(runtime::isa_name(options.isa)).c_str(),
              options.num_threads, measured.pinned ? ", pinned" : "");
  char name[32];
  std::snprintf(name, sizeof(name), "read %llu MiB",
                static_cast<unsigned long long>(measured.read_bytes >> 20U));
  print_rate(name, measured.bytes_per_second, "GB/s");
  print_rate("int8 products", measured.int8_ops_per_second, "GOPS");
  print_rate("f32 products", measured.f32_flops_per_second, "GFLOPS");
}

}  // namespace

int main(int argc, char** argv) {
  roofline::RooflineOptions options;
  if (argc > 1) options.num_threads = static_cast<std::uint32_t>(std::atoi(argv[1]));
  if (options.num_threads == 0 || options.num_threads > 1024) {
    std::fprintf(stderr, "usage: kvasir_bench_roofline [THREADS [MIB]...]\n");
    return 2;
  }
  std::vector<std::uint64_t> sizes;
  for (int i = 2; i < argc; ++i) {
    sizes.push_back(static_cast<std::uint64_t>(std::atoi(argv[i])) << 20U);
  }
  if (sizes.empty()) sizes.push_back(roofline::kDefaultReadBytes);
  for (const runtime::Isa isa : runtime::compiled_isas()) {
    if (!runtime::cpu_supports(isa)) continue;
    options.isa = isa;
    for (const std::uint64_t bytes : sizes) {
      options.read_bytes = bytes;
      print_roofline(options);
    }
  }
  return 0;
}
