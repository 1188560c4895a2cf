// The limits of this machine as a table: kvasir_bench_roofline [THREADS [MIB]...]. Each set that
// the CPU has is measured; nothing else should run meanwhile.
#include "bench/roofline/roofline.h"
#include "runtime/kernels/dispatch.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

using namespace kvasir;

void print_rate(const char* name, const roofline::Rate& rate, const char* unit) {
  std::printf("  %-16s %8.1f %s (%.1f to %.1f)\n", name, rate.median / 1e9, unit, rate.min / 1e9,
              rate.max / 1e9);
}

void print_roofline(const roofline::RooflineOptions& options) {
  const roofline::Roofline measured = roofline::measure_roofline(options);
  std::printf("%s, %u threads%s\n", std::string(runtime::isa_name(options.isa)).c_str(),
              options.num_threads, measured.pinned ? ", pinned" : "");
  for (const roofline::Reading& reading : measured.readings) {
    const std::string name = "read " + std::to_string(reading.bytes >> 20U) + " MiB";
    print_rate(name.c_str(), reading.bytes_per_second, "GB/s");
  }
  print_rate("int8 products", measured.int8_ops_per_second, "GOPS");
  print_rate("f32 products", measured.f32_flops_per_second, "GFLOPS");
  std::printf("  %-16s %8.0f ns\n", "barrier", 1e9 / measured.barriers_per_second.median);
}

}  // namespace

int main(int argc, char** argv) {
  roofline::RooflineOptions options;
  if (argc > 1) options.num_threads = static_cast<std::uint32_t>(std::atoi(argv[1]));
  if (options.num_threads == 0 || options.num_threads > 1024) {
    std::fprintf(stderr, "usage: kvasir_bench_roofline [THREADS [MIB]...]\n");
    return 2;
  }
  if (argc > 2) options.read_bytes.clear();
  for (int i = 2; i < argc; ++i) {
    options.read_bytes.push_back(static_cast<std::uint64_t>(std::atoi(argv[i])) << 20U);
  }
  for (const runtime::Isa isa : runtime::compiled_isas()) {
    if (!runtime::cpu_supports(isa)) continue;
    options.isa = isa;
    print_roofline(options);
  }
  return 0;
}
