// What a bench says: its figures as a table for people and as one JSON object for programs. Nothing
// is measured here.
#pragma once

#include "bench/roofline/roofline.h"
#include "cli/bench_bound.h"
#include "cli/bench_run.h"
#include "cli/bench_workload.h"

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace kvasir::cli {

struct BenchMachine {
  std::string cpu;         // "AMD EPYC", as the system names it; "unknown"
  std::uint32_t cpus = 0;  // that this process may use
  std::string governor;    // of the first CPU; empty where there is none to see
  std::uint32_t threads = 0;
  std::string isa;  // of the kernels
  std::string activations;
  std::string kernels;  // by weight type and layout
  std::string kv_type;
  std::string commit;
  std::string build;
};

struct BenchModel {
  std::string name;
  std::string architecture;
  std::string file;  // without its folder
  std::uint64_t file_bytes = 0;
  std::uint64_t step_bytes = 0;  // weights that a step with logits reads
};

struct BenchResult {
  Workload workload;
  WorkloadTimes times;
};

struct BenchReport {
  BenchMachine machine;
  BenchModel model;
  std::uint32_t step_tokens = 0;
  std::uint32_t rounds = 0;
  double open_seconds = 0.0;     // the file's metadata read and checked
  double load_seconds = 0.0;     // all that is needed before a step, the tokenizer too
  double packing_seconds = 0.0;  // of those, moving the weights into their layout
  std::uint64_t kv_bytes = 0;
  std::uint64_t peak_rss_bytes =
      0;  // after the workloads, before the machine's limits are measured
  ModelWork work;
  std::vector<BenchResult> results;
  std::optional<roofline::Roofline> roofline;
};

/// Bytes that a step of the result reads, on average over a round.
[[nodiscard]] std::uint64_t mean_step_bytes(const BenchReport& report, const BenchResult& result);
/// Sizes at which reading should be measured: a step with logits, and the results' own where they
/// are more than half as large again as all others. Larger footprints are read more slowly.
[[nodiscard]] std::vector<std::uint64_t> reading_sizes(const BenchReport& report);

/// Share of the bound that a result reached.
struct BoundShare {
  double percent = 0.0;
  double tokens_per_second = 0.0;  // at the bound
  std::string name;
};
/// Absent without a roofline.
[[nodiscard]] std::optional<BoundShare> bound_share(const BenchReport& report,
                                                    const BenchResult& result);
/// Of the rounds; requires one at least.
[[nodiscard]] roofline::Rate tokens_per_second(const TimedRounds& rounds);

void write_bench_text(const BenchReport& report, std::ostream& out);
void write_bench_json(const BenchReport& report, std::ostream& out);

}  // namespace kvasir::cli
