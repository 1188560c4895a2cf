// Threads start together at a barrier, work for a few hundredths of a second and meet at another;
// the first one reads the clock at both. So the slowest thread counts, as in a step.
#include "bench/roofline/roofline.h"

#include "bench/roofline/probe_table.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/page_buffer.h"
#include "core/seconds.h"
#include "runtime/kernels/dispatch.h"
#include "runtime/worker_team.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <cstring>
#include <functional>
#include <sched.h>
#include <thread>
#include <vector>

namespace kvasir::roofline {
namespace {

constexpr std::size_t kRuns = 5;
constexpr int kBarriers = 2000;          // of one run: a millisecond, when nothing is in the way
constexpr double kRunSeconds = 0.04;     // some 20 passes over 100 MB, ten scheduler ticks
constexpr double kTrialSeconds = 0.004;  // from which the length of a run is foreseen

/// What one thread does in a run; `amount` is iterations or passes.
using Work = std::function<void(std::uint32_t thread_index, std::uint64_t amount)>;

ProbeTable probes_for(runtime::Isa isa) {
  KVASIR_CHECK(runtime::cpu_supports(isa));
  switch (isa) {
    case runtime::Isa::kScalar:
      break;
    case runtime::Isa::kAvx2:
      return kAvx2Probes;
    case runtime::Isa::kAvxVnni: {
      ProbeTable probes = kAvx2Probes;
      probes.int8 = kAvxVnniInt8Probe;
      return probes;
    }
    case runtime::Isa::kAvx512:
      return kAvx512Probes;
  }
  return kScalarProbes;
}

/// The CPUs that threads may be pinned to, one each; empty when there are fewer than threads.
std::vector<int> cpus_to_pin(std::uint32_t num_threads) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::vector<int> cpus;
  // A mask wider than cpu_set_t is refused here: such a machine is measured without pinning.
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE && cpus.size() < num_threads; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
  }
  if (cpus.size() < num_threads) cpus.clear();
  return cpus;
}

/// The calling thread, to one CPU. A refusal only costs accuracy.
void pin_to(int cpu) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(cpu, &mask);
  sched_setaffinity(0, sizeof(mask), &mask);
}

/// Five runs of so many units each.
template <typename SecondsOfRun>
Rate rate_of_runs(double units, const SecondsOfRun& seconds_of_run) {
  std::array<double, kRuns> rates{};
  for (double& rate : rates) rate = units / seconds_of_run();
  std::sort(rates.begin(), rates.end());
  return {.median = rates[kRuns / 2], .min = rates.front(), .max = rates.back()};
}

class Runner {
 public:
  explicit Runner(std::uint32_t num_threads)
      : num_threads_(num_threads), cpus_(cpus_to_pin(num_threads)) {}

  [[nodiscard]] bool pinned() const { return !cpus_.empty(); }

  /// Seconds from the common start to the end of the last thread.
  [[nodiscard]] double seconds_of(const Work& work, std::uint64_t amount) const {
    std::barrier together(static_cast<std::ptrdiff_t>(num_threads_));
    TimePoint start{};
    TimePoint end{};
    const auto run = [&](std::uint32_t index) {
      if (pinned()) pin_to(cpus_[index]);
      together.arrive_and_wait();
      if (index == 0) start = clock_.now();
      work(index, amount);
      together.arrive_and_wait();
      if (index == 0) end = clock_.now();
    };
    std::vector<std::jthread> threads;
    for (std::uint32_t index = 0; index < num_threads_; ++index) threads.emplace_back(run, index);
    for (std::jthread& thread : threads) thread.join();
    return to_seconds(end - start);
  }

  /// `units` is what all threads together do for an amount of one.
  [[nodiscard]] Rate rate_of(const Work& work, double units) const {
    std::uint64_t amount = 1;
    double seconds = seconds_of(work, amount);  // also the warm-up
    while (seconds < kTrialSeconds) {
      amount *= seconds < kTrialSeconds / 16 ? 16 : 2;
      seconds = seconds_of(work, amount);
    }
    const double per_run = static_cast<double>(amount) * kRunSeconds / seconds;
    amount = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(per_run));
    return rate_of_runs(units * static_cast<double>(amount),
                        [&] { return seconds_of(work, amount); });
  }

 private:
  std::uint32_t num_threads_;
  std::vector<int> cpus_;  // [num_threads] or empty
  SteadyClock clock_;
};

Rate arithmetic_rate(const Runner& runner, const ArithmeticProbe& probe,
                     std::uint32_t num_threads) {
  const Work work = [&probe](std::uint32_t /*thread_index*/, std::uint64_t amount) {
    probe.run(amount);
  };
  return runner.rate_of(work, static_cast<double>(probe.operations_per_iteration) * num_threads);
}

Reading reading_of(const Runner& runner, ReadProbe probe, std::uint64_t bytes,
                   std::uint32_t num_threads) {
  const std::uint64_t granule = std::uint64_t{kReadGranuleBytes} * num_threads;
  const std::size_t granules = std::max<std::uint64_t>(1, (bytes + granule - 1) / granule);
  const std::size_t part_bytes = granules * kReadGranuleBytes;
  PageBuffer buffer(part_bytes * num_threads);
  const auto part = [&](std::uint32_t index) { return buffer.data() + index * part_bytes; };
  // Written by the thread that will read it: untouched pages are all the same page of zeros, and
  // with several memory nodes it should be the near one.
  (void)runner.seconds_of(
      [&](std::uint32_t index, std::uint64_t /*amount*/) {
        std::memset(part(index), 1, part_bytes);
      },
      1);
  const Work read = [&](std::uint32_t index, std::uint64_t passes) {
    for (std::uint64_t pass = 0; pass < passes; ++pass) probe(part(index), part_bytes);
  };
  const std::uint64_t pass_bytes = part_bytes * num_threads;
  return {.bytes = pass_bytes,
          .bytes_per_second = runner.rate_of(read, static_cast<double>(pass_bytes))};
}

Rate barrier_rate(std::uint32_t num_threads) {
  const SteadyClock clock;
  runtime::WorkerTeam team(num_threads);
  return rate_of_runs(kBarriers, [&] {
    const TimePoint start = clock.now();
    team.run([&](std::uint32_t /*worker_index*/) {
      for (int i = 0; i < kBarriers; ++i) team.sync();
    });
    return to_seconds(clock.now() - start);
  });
}

}  // namespace

Roofline measure_roofline(const RooflineOptions& options) {
  KVASIR_CHECK(options.num_threads > 0);
  const ProbeTable probes = probes_for(options.isa);
  const Runner runner(options.num_threads);
  Roofline result;
  result.pinned = runner.pinned();
  for (const std::uint64_t bytes : options.read_bytes) {
    result.readings.push_back(reading_of(runner, probes.read, bytes, options.num_threads));
  }
  result.int8_ops_per_second = arithmetic_rate(runner, probes.int8, options.num_threads);
  result.f32_flops_per_second = arithmetic_rate(runner, probes.f32, options.num_threads);
  result.barriers_per_second = barrier_rate(options.num_threads);
  return result;
}

}  // namespace kvasir::roofline
