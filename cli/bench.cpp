// `kvasir bench`: how fast this build runs a model on this machine, offline, and how much of the
// machine's limit that is. What runs is bench_workload and bench_run, what is written bench_report;
// here is the command line and the order: load, run, then measure the machine.
#include "bench/roofline/roofline.h"
#include "cli/bench_progress.h"
#include "cli/bench_report.h"
#include "cli/bench_run.h"
#include "cli/bench_workload.h"
#include "cli/build_info.h"
#include "cli/commands.h"
#include "cli/engine_stack.h"
#include "cli/logging.h"
#include "cli/startup_error.h"
#include "config/cli_flags.h"
#include "config/option_table.h"
#include "core/seconds.h"
#include "runtime/kernels/dispatch.h"
#include "runtime/model/pack_weights.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvasir::cli {
namespace {

struct BenchFlags {
  WorkloadOptions workloads;
  std::uint32_t rounds = 5;
  bool json = false;
  bool no_roofline = false;
};

/// What the workloads need of the options that serve would set; and how long the file took to open.
struct Sizing {
  double open_seconds = 0.0;
  std::uint64_t file_bytes = 0;
};

/// Opens the file once for its shapes: the KV arena is as large as the largest workload.
Sizing size_for(const std::vector<Workload>& workloads, config::LoadedOptions& loaded) {
  config::ServeOptions& options = loaded.options;
  const SteadyClock clock;
  const NamedPath file =
      resolve_model_path({options.model_path, config::origin_of(loaded, "model")});
  const TimePoint start = clock.now();
  const auto gguf = value_or_throw(runtime::GgufFile::open(file.path), file.origin);
  const auto model = value_or_throw(runtime::read_model_config(*gguf), file.origin);
  Sizing sizing;
  sizing.open_seconds = to_seconds(clock.now() - start);
  sizing.file_bytes = gguf->size_bytes();

  const auto kv_type = kvcache::kv_type_from_name(options.kv_type);
  if (!kv_type) {
    throw StartupError(config::origin_of(loaded, "kv-type") + ": " + options.kv_type +
                       " is not in this build");
  }
  const kvcache::KvGeometry geometry = model.kv_geometry(*kv_type, kvcache::kBlockTokens);
  const std::uint32_t context =
      options.context_tokens == 0 ? model.context_tokens : options.context_tokens;
  options.max_sequences = 1;
  options.kv_budget_bytes = 0;
  for (const Workload& workload : workloads) {
    check_workload(workload, {.context_tokens = context, .step_tokens = options.step_tokens});
    const std::uint64_t bytes =
        bench_blocks(workload, geometry, options.step_tokens) * geometry.bytes_per_block();
    options.max_sequences = std::max(options.max_sequences, sequences_at_once(workload));
    if (bytes <= options.kv_budget_bytes) continue;
    options.kv_budget_bytes = bytes;
    // Who is told to lower it when it does not fit.
    loaded.origins["kv-budget"] = "bench: what --workload " + workload_name(workload) + " needs";
  }
  loaded.origins["max-sequences"] = "bench: what --workload needs";
  options.max_waiting = 1;
  return sizing;
}

std::string first_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

/// What follows "KEY:" in a file of such lines; empty when there is none.
std::string value_of_key(const char* path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

std::string cpu_name() {
  const std::string name = value_of_key("/proc/cpuinfo", "model name");
  return name.empty() ? "unknown" : name;
}

/// Not getrusage's: that one remembers what the process was before exec.
std::uint64_t peak_rss_bytes() {
  std::istringstream in(value_of_key("/proc/self/status", "VmHWM"));
  std::uint64_t kib = 0;
  return in >> kib ? kib * 1024 : 0;
}

void describe(const config::ServeOptions& options, const EngineStack& stack, BenchReport& report) {
  const runtime::KernelTable& kernels = runtime::kernels_for(stack.executor_options.isa);
  report.machine = {.cpu = cpu_name(),
                    .cpus = affinity_cpus(),
                    .governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
                    .threads = stack.threads.threads,
                    .isa = stack.info.kernels,
                    .activations = std::string(runtime::activations_name(stack.activations)),
                    .kernels = runtime::kernels_text(stack.model->weights, kernels),
                    .kv_type = options.kv_type,
                    .commit = std::string(build_commit()),
                    .build = std::string(build_type())};
  report.work = model_work(stack.model->weights, stack.geometry);
  report.model = {.name = stack.model->config.name,
                  .architecture = stack.model->config.architecture,
                  .file = stack.info.root,
                  .file_bytes = report.model.file_bytes,
                  .step_bytes = step_bytes(report.work, {.tokens = 1, .head_rows = 1})};
  report.step_tokens = options.step_tokens;
  report.packing_seconds = stack.packing_seconds;
  report.kv_bytes = stack.storage->size_bytes();
}

void run_workloads(const std::vector<Workload>& workloads, const EngineStack& stack,
                   BenchProgress& progress, BenchReport& report) {
  BenchSetup setup;
  setup.executor = stack.executor.get();
  setup.clock = &stack.clock;
  setup.vocab_size = stack.model->config.vocab_size;
  setup.step_tokens = report.step_tokens;
  setup.rounds = report.rounds;
  for (const Workload& workload : workloads) {
    setup.progress = [&](std::uint32_t round) {
      progress.step(workload_name(workload) + (round == 0
                                                   ? std::string(", warm-up")
                                                   : ", round " + std::to_string(round) + " of " +
                                                         std::to_string(report.rounds)));
    };
    report.results.push_back({workload, run_workload(setup, workload, stack.geometry)});
  }
}

BenchReport measure(const BenchFlags& flags, config::LoadedOptions loaded) {
  const std::vector<Workload> workloads = parse_workloads(flags.workloads);
  BenchReport report;
  report.rounds = flags.rounds;
  const Sizing sizing = size_for(workloads, loaded);
  report.open_seconds = sizing.open_seconds;
  report.model.file_bytes = sizing.file_bytes;

  // Steps of the bar: loading, each workload's warm-up and rounds, and the machine's limits.
  BenchProgress progress(2 + workloads.size() * (std::size_t{flags.rounds} + 1));
  progress.step("loading");
  const SteadyClock clock;
  const TimePoint start = clock.now();
  const auto stack = build_engine_stack(loaded);
  report.load_seconds = to_seconds(clock.now() - start);
  describe(loaded.options, *stack, report);
  run_workloads(workloads, *stack, progress, report);
  report.peak_rss_bytes = peak_rss_bytes();
  if (!flags.no_roofline) {
    progress.step("limits of the machine");
    report.roofline = roofline::measure_roofline({.isa = stack->executor_options.isa,
                                                  .num_threads = stack->threads.threads,
                                                  .read_bytes = reading_sizes(report)});
  }
  return report;
}

int run(const BenchFlags& flags, config::LoadedOptions loaded) {
  start_logging("error", "text");
  const BenchReport report = measure(flags, std::move(loaded));
  (flags.json ? write_bench_json : write_bench_text)(report, std::cout);
  return 0;
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand(
      "bench",
      "Measure prefill and decode of a model here, and their share of the machine's limit");
  command
      ->add_option("--workload", flags->workloads.names,
                   "prefill[:TOKENS], decode[:SEQUENCES], mixed[:SEQUENCES], with commas")
      ->capture_default_str();
  command
      ->add_option("--prompt-tokens", flags->workloads.prompt_tokens,
                   "Prompt of each [512 for prefill and mixed, 128 for decode]")
      ->check(CLI::Range(1U, 1U << 24U));
  command->add_option("--new-tokens", flags->workloads.new_tokens, "Timed steps of decode")
      ->check(CLI::Range(1U, 1U << 20U))
      ->capture_default_str();
  command->add_option("--rounds", flags->rounds, "Rounds of each workload; the median counts")
      ->check(CLI::Range(1U, 1000U))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->add_flag("--no-roofline", flags->no_roofline,
                    "Leave out the machine's limits and the share of them");
  const auto sources = config::add_option_flags(*command, config::kBench);
  return [flags, sources] { return run(*flags, config::load_options(*sources)); };
}

}  // namespace kvasir::cli
