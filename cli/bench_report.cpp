#include "cli/bench_report.h"

#include "cli/memory_sum.h"
#include "core/check.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <ostream>

namespace kvasir::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kScope =
    "offline: forward pass and sampling alone; scheduling, text and HTTP are not in it";

constexpr double kSizeTolerance = 1.5;
constexpr std::uint64_t kMostReadBytes = 2ULL << 30U;  // past that nothing changes any more

/// How many times the one size is the other; at least 1.
double ratio(std::uint64_t a, std::uint64_t b) {
  return static_cast<double>(std::max(a, b)) / static_cast<double>(std::min(a, b));
}

/// With the reading of the nearest size.
MachineLimits limits_of(const roofline::Roofline& roofline, std::uint64_t bytes) {
  const auto nearest =
      std::min_element(roofline.readings.begin(), roofline.readings.end(),
                       [bytes](const roofline::Reading& a, const roofline::Reading& b) {
                         return ratio(a.bytes, bytes) < ratio(b.bytes, bytes);
                       });
  KVASIR_CHECK(nearest != roofline.readings.end());
  return {.bytes_per_second = nearest->bytes_per_second.median,
          .int8_ops_per_second = roofline.int8_ops_per_second.median,
          .f32_flops_per_second = roofline.f32_flops_per_second.median};
}

double ms_per_step(const WorkloadTimes& times) {
  const double rate = tokens_per_second(times.timed).median;
  return 1e3 * static_cast<double>(times.timed.tokens) / rate /
         static_cast<double>(times.steps.size());
}

std::uint32_t shown_prompt(const Workload& workload) {
  return workload.kind == WorkloadKind::kMixed ? workload.arriving_prompt_tokens
                                               : workload.prompt_tokens;
}

// --- text -------------------------------------------------------------------------------------

template <typename... Arguments>
std::string format(const char* pattern, Arguments... arguments) {
  char text[256];
  std::snprintf(text, sizeof(text), pattern, arguments...);
  return text;
}

void write_row(const BenchReport& report, const BenchResult& result, std::ostream& out) {
  const roofline::Rate rate = tokens_per_second(result.times.timed);
  out << format("%-13s %6u %9.1f  %9.1f %9.1f  %9.3f", workload_name(result.workload).c_str(),
                shown_prompt(result.workload), rate.median, rate.min, rate.max,
                ms_per_step(result.times));
  if (const auto share = bound_share(report, result)) {
    out << format("  %6.1f %% of %8.0f, %s", share->percent, share->tokens_per_second,
                  share->name.c_str());
  }
  if (result.times.prefill) {
    out << format("  (prompts %.0f)", tokens_per_second(*result.times.prefill).median);
  }
  out << '\n';
}

void write_machine(const BenchReport& report, std::ostream& out) {
  const BenchMachine& machine = report.machine;
  out << "machine: " << machine.cpu << ", " << machine.cpus << " CPUs"
      << (machine.governor.empty() ? "" : ", governor " + machine.governor) << "; "
      << machine.threads << " threads, " << machine.isa << ", activations " << machine.activations
      << ", KV " << machine.kv_type << "; kvasir " << machine.commit << " (" << machine.build
      << ")\n";
  out << "model: " << report.model.name << " (" << report.model.architecture << "), "
      << report.model.file << ", " << bytes_text(report.model.file_bytes) << "; a step reads "
      << bytes_text(report.model.step_bytes) << " of weights\n";
  out << "kernels: " << machine.kernels << '\n';
  out << format("load: metadata %.3f s; ready %.3f s, of it packing weights %.3f s\n",
                report.open_seconds, report.load_seconds, report.packing_seconds);
  out << kScope << '\n';
}

void write_roofline(const roofline::Roofline& roofline, std::ostream& out) {
  out << "limits here:";
  for (const roofline::Reading& reading : roofline.readings) {
    out << format(" %.1f GB/s", reading.bytes_per_second.median / 1e9) << " reading "
        << bytes_text(reading.bytes) << ',';
  }
  out << format(
      " %.0f int8 GOPS, %.0f f32 GFLOPS, a barrier %.0f ns%s\n",
      roofline.int8_ops_per_second.median / 1e9, roofline.f32_flops_per_second.median / 1e9,
      1e9 / roofline.barriers_per_second.median, roofline.pinned ? "" : "; threads not pinned");
}

// --- JSON -------------------------------------------------------------------------------------

Json json_of(const BenchReport& report, const BenchResult& result) {
  const Workload& workload = result.workload;
  const roofline::Rate rate = tokens_per_second(result.times.timed);
  const auto share = bound_share(report, result);
  Json json = {
      {"workload", workload_kind_name(workload.kind)},
      {"name", workload_name(workload)},
      {"prompt_tokens", shown_prompt(workload)},
      {"sequences", workload.sequences},
      {"new_tokens", workload.new_tokens},
      {"tokens_per_second", rate.median},
      {"tokens_per_second_min", rate.min},
      {"tokens_per_second_max", rate.max},
      {"tokens_per_round", result.times.timed.tokens},
      {"steps_per_round", result.times.steps.size()},
      {"ms_per_step", ms_per_step(result.times)},
      {"percent_of_bound", share ? Json(share->percent) : Json()},
      {"bound", share ? Json(share->name) : Json()},
      {"bound_tokens_per_second", share ? Json(share->tokens_per_second) : Json()},
  };
  if (result.times.prefill) {
    json["prefill_tokens_per_second"] = tokens_per_second(*result.times.prefill).median;
  }
  return json;
}

Json json_of(const roofline::Rate& rate) {
  return {{"median", rate.median}, {"min", rate.min}, {"max", rate.max}};
}

Json json_of(const roofline::Roofline& roofline) {
  Json readings = Json::array();
  for (const roofline::Reading& reading : roofline.readings) {
    readings.push_back(
        {{"bytes", reading.bytes}, {"bytes_per_second", json_of(reading.bytes_per_second)}});
  }
  return {{"reading", readings},
          {"int8_ops_per_second", json_of(roofline.int8_ops_per_second)},
          {"f32_flops_per_second", json_of(roofline.f32_flops_per_second)},
          {"barriers_per_second", json_of(roofline.barriers_per_second)},
          {"pinned", roofline.pinned}};
}

Json json_of(const BenchMachine& machine) {
  return {{"cpu", machine.cpu},           {"cpus", machine.cpus},
          {"governor", machine.governor}, {"threads", machine.threads},
          {"isa", machine.isa},           {"activations", machine.activations},
          {"kernels", machine.kernels},   {"kv_type", machine.kv_type},
          {"commit", machine.commit},     {"build", machine.build}};
}

Json json_of(const BenchModel& model) {
  return {{"name", model.name},
          {"architecture", model.architecture},
          {"file", model.file},
          {"file_bytes", model.file_bytes},
          {"weight_bytes_per_step", model.step_bytes}};
}

}  // namespace

roofline::Rate tokens_per_second(const TimedRounds& rounds) {
  KVASIR_CHECK(!rounds.seconds.empty());
  std::vector<double> seconds = rounds.seconds;
  std::sort(seconds.begin(), seconds.end());
  // Of an even number the mean of the two in the middle.
  const std::size_t half = seconds.size() / 2;
  const double middle =
      seconds.size() % 2 == 1 ? seconds[half] : (seconds[half - 1] + seconds[half]) / 2;
  const auto rate = [&](double duration) { return static_cast<double>(rounds.tokens) / duration; };
  return {.median = rate(middle), .min = rate(seconds.back()), .max = rate(seconds.front())};
}

std::uint64_t mean_step_bytes(const BenchReport& report, const BenchResult& result) {
  std::uint64_t bytes = 0;
  for (const StepShape& step : result.times.steps) bytes += step_bytes(report.work, step);
  return bytes / std::max<std::size_t>(1, result.times.steps.size());
}

std::vector<std::uint64_t> reading_sizes(const BenchReport& report) {
  std::vector<std::uint64_t> sizes = {std::min(report.model.step_bytes, kMostReadBytes)};
  for (const BenchResult& result : report.results) {
    const std::uint64_t bytes = std::min(mean_step_bytes(report, result), kMostReadBytes);
    const bool is_new = std::all_of(sizes.begin(), sizes.end(), [bytes](std::uint64_t size) {
      return ratio(size, bytes) > kSizeTolerance;
    });
    if (is_new) sizes.push_back(bytes);
  }
  return sizes;
}

std::optional<BoundShare> bound_share(const BenchReport& report, const BenchResult& result) {
  if (!report.roofline) return std::nullopt;
  const Bound bound = bound_of(report.work, result.times.steps,
                               limits_of(*report.roofline, mean_step_bytes(report, result)));
  const double at_bound = static_cast<double>(result.times.timed.tokens) / bound.seconds;
  return BoundShare{.percent = 100.0 * tokens_per_second(result.times.timed).median / at_bound,
                    .tokens_per_second = at_bound,
                    .name = std::string(bound.name)};
}

void write_bench_text(const BenchReport& report, std::ostream& out) {
  write_machine(report, out);
  if (report.roofline) write_roofline(*report.roofline, out);
  out << "\nworkload      prompt  tokens/s   slowest   fastest     ms/step"
      << (report.roofline ? "     bound" : "") << '\n';
  for (const BenchResult& result : report.results) write_row(report, result, out);
  out << "\nmedians of " << report.rounds << " rounds after a warm-up, steps of at most "
      << report.step_tokens << " tokens; peak memory " << bytes_text(report.peak_rss_bytes)
      << ", of it KV arena " << bytes_text(report.kv_bytes) << '\n';
}

void write_bench_json(const BenchReport& report, std::ostream& out) {
  Json results = Json::array();
  for (const BenchResult& result : report.results) results.push_back(json_of(report, result));
  const Json json = {
      {"machine", json_of(report.machine)},
      {"model", json_of(report.model)},
      {"scope", kScope},
      {"step_tokens", report.step_tokens},
      {"rounds", report.rounds},
      {"open_seconds", report.open_seconds},
      {"load_seconds", report.load_seconds},
      {"packing_seconds", report.packing_seconds},
      {"kv_bytes", report.kv_bytes},
      {"peak_rss_bytes", report.peak_rss_bytes},
      {"roofline", report.roofline ? json_of(*report.roofline) : Json()},
      {"results", results},
  };
  // Names come from model files: what is no UTF-8 becomes U+FFFD.
  out << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace kvasir::cli
