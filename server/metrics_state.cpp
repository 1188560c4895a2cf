#include "server/metrics_state.h"

#include "core/seconds.h"
#include "server/generate_service.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace kvasir::server {
namespace {

using prometheus::ClientMetric;
using prometheus::Labels;
using prometheus::MetricFamily;
using prometheus::MetricType;

ClientMetric labelled(const Labels& labels) {
  ClientMetric metric;
  for (const auto& [name, value] : labels) metric.label.push_back({name, value});
  return metric;
}

MetricFamily counter_family(std::string name, std::string help, double value,
                            const Labels& labels = {}) {
  MetricFamily family{std::move(name), std::move(help), MetricType::Counter, {labelled(labels)}};
  family.metric.front().counter.value = value;
  return family;
}

/// Counts as they are published; a double holds them exactly up to 2^53.
double number(std::uint64_t count) { return static_cast<double>(count); }

MetricFamily iteration_tokens(const engine::EngineStatus& status, const Labels& labels) {
  MetricFamily family{"kvasir_iteration_tokens",
                      "Tokens computed by one engine step.",
                      MetricType::Histogram,
                      {labelled(labels)}};
  ClientMetric::Histogram& histogram = family.metric.front().histogram;
  std::uint64_t steps = 0;
  for (std::size_t i = 0; i < engine::kStepTokenBounds.size(); ++i) {
    steps += status.steps_by_tokens.at(i);
    histogram.bucket.push_back({steps, number(engine::kStepTokenBounds.at(i))});
  }
  histogram.sample_count = steps + status.steps_by_tokens.back();
  histogram.sample_sum = number(status.computed_tokens_total);
  return family;
}

std::uint64_t resident_bytes() {
  std::uint64_t total_pages = 0;
  std::uint64_t resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  return resident_pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

std::uint64_t open_fds() {
  std::error_code ec;
  const auto fds = std::filesystem::directory_iterator("/proc/self/fd", ec);
  if (ec) return 0;
  const auto count = std::distance(begin(fds), end(fds));
  return static_cast<std::uint64_t>(count) - 1;  // without the one that looks
}

double cpu_seconds() {
  std::timespec cpu{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  return static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9;
}

void append_gauges(std::vector<MetricFamily>& out, const engine::EngineStatus& status,
                   const ModelInfo& model, const Labels& labels) {
  const std::uint64_t block = status.bytes_per_block;
  const auto gauge = [&](const char* name, const char* help, double value) {
    out.push_back(gauge_family(name, help, value, labels));
  };
  gauge("kvasir_running_sequences", "Sequences that run.", status.running_sequences);
  gauge("kvasir_waiting_sequences", "Sequences that wait for a step: new ones, and preempted ones.",
        status.waiting_sequences);
  gauge("kvasir_kv_budget_bytes", "The KV budget.", number(model.kv_budget_bytes));
  gauge("kvasir_kv_live_bytes", "KV bytes of running sequences.",
        number(status.live_blocks * block));
  gauge("kvasir_kv_cached_bytes", "KV bytes of no running sequence, kept for later prefixes.",
        number(status.cached_blocks * block));
  gauge("kvasir_kv_free_bytes", "KV bytes that can be given out, cached ones included.",
        number(status.free_blocks * block));
  gauge("kvasir_kv_reserved_bytes",
        "Of the free KV bytes, those kept for what running sequences may come to need.",
        number(status.reserved_blocks * block));
  gauge("kvasir_kv_usage_ratio", "Live KV bytes over all KV bytes, 0 to 1.",
        status.total_blocks == 0 ? 0.0 : number(status.live_blocks) / status.total_blocks);
  gauge("kvasir_draining", "1 while the server shuts down, else 0.", status.draining ? 1 : 0);
}

void append_counters(std::vector<MetricFamily>& out, const engine::EngineStatus& status,
                     const Labels& labels) {
  const auto counter = [&](const char* name, const char* help, double value) {
    out.push_back(counter_family(name, help, value, labels));
  };
  counter("kvasir_steps_total", "Engine steps.", number(status.steps_total));
  counter("kvasir_step_seconds_total", "Time in engine steps.", to_seconds(status.step_time_total));
  counter("kvasir_execute_seconds_total", "Time in the model's forward pass.",
          to_seconds(status.execute_time_total));
  counter("kvasir_computed_tokens_total", "Token passes.", number(status.computed_tokens_total));
  counter("kvasir_recomputed_tokens_total", "Token passes repeated after a preemption.",
          number(status.recomputed_tokens_total));
  counter("kvasir_wasted_tokens_total", "Tokens generated past the end of a stop string.",
          number(status.wasted_tokens_total));
  counter("kvasir_preemptions_total", "Sequences stopped to run later.",
          number(status.preemptions_total));
  counter("kvasir_prefix_cache_query_tokens_total",
          "Tokens looked up in the prefix cache and in what runs beside.",
          number(status.prefix_query_tokens_total));
  counter("kvasir_prefix_cache_hit_tokens_total", "Tokens of them that were found.",
          number(status.prefix_hit_tokens_total));
  counter("kvasir_prefix_cache_miss_tokens_total", "Tokens of them that were not found.",
          number(status.prefix_query_tokens_total - status.prefix_hit_tokens_total));
}

void append_block_counters(std::vector<MetricFamily>& out, const engine::EngineStatus& status,
                           const Labels& labels) {
  const auto counter = [&](const char* name, const char* help, std::uint64_t count) {
    out.push_back(counter_family(name, help, number(count), labels));
  };
  counter("kvasir_kv_taken_blocks_total", "KV blocks that were free and that a sequence took.",
          status.taken_blocks_total);
  counter("kvasir_kv_returned_blocks_total",
          "KV blocks that a sequence gave back and that nobody else held.",
          status.returned_blocks_total);
  counter("kvasir_kv_window_returned_blocks_total",
          "Of the returned KV blocks, those behind a window that had moved on.",
          status.window_returned_blocks_total);
  counter("kvasir_kv_reclaimed_blocks_total", "Cached KV blocks whose content gave way to another.",
          status.reclaimed_blocks_total);
  counter("kvasir_kv_audited_prefixes_total",
          "Cached prefixes that the truth check computed again and compared.",
          status.audited_prefixes_total);
  counter("kvasir_kv_audited_tokens_total", "Tokens that the truth check computed.",
          status.audited_tokens_total);
  counter("kvasir_kv_audit_mismatches_total",
          "Cached prefixes that were not what the truth check computed.",
          status.audit_mismatches_total);
  counter("kvasir_kv_audits_given_up_total",
          "Sampled hits that the truth check did not compare to their end.",
          status.audits_given_up_total);
  counter("kvasir_kv_dropped_blocks_total",
          "KV blocks that the truth check threw out of the cache after a mismatch.",
          status.dropped_blocks_total);
}

}  // namespace

MetricFamily gauge_family(std::string name, std::string help, double value, const Labels& labels) {
  MetricFamily family{std::move(name), std::move(help), MetricType::Gauge, {labelled(labels)}};
  family.metric.front().gauge.value = value;
  return family;
}

std::vector<MetricFamily> engine_families(const engine::EngineStatus& status,
                                          const ModelInfo& model, const Labels& model_labels) {
  std::vector<MetricFamily> out;
  append_gauges(out, status, model, model_labels);
  append_counters(out, status, model_labels);
  append_block_counters(out, status, model_labels);
  out.push_back(iteration_tokens(status, model_labels));
  return out;
}

std::vector<MetricFamily> info_families(const Scrape& scrape, const ModelInfo& model,
                                        const Labels& model_labels) {
  Labels served = model_labels;
  served["root"] = model.root;
  served["kv_type"] = kvcache::kv_type_name(model.geometry.type);
  served["kernels"] = model.kernels;
  served["threads"] = std::to_string(model.num_threads);
  Labels cache = model_labels;
  cache["block_size"] = std::to_string(model.geometry.block_tokens);
  cache["num_gpu_blocks"] = std::to_string(scrape.engine.total_blocks);
  return {gauge_family("kvasir_build_info", "Which build runs.", 1,
                       {{"version", std::string(scrape.version)},
                        {"commit", std::string(scrape.commit)},
                        {"build", std::string(scrape.build)}}),
          gauge_family("kvasir_model_info", "Which model runs and how.", 1, served),
          gauge_family("vllm:cache_config_info", "Shape of the KV cache.", 1, cache)};
}

std::vector<MetricFamily> process_families(const ModelInfo& model) {
  return {
      gauge_family("process_resident_memory_bytes", "Resident memory.", number(resident_bytes())),
      gauge_family("process_open_fds", "Open file descriptors.", number(open_fds())),
      counter_family("process_cpu_seconds_total", "User and system time.", cpu_seconds()),
      gauge_family("process_start_time_seconds", "Start of the process, unix time.",
                   static_cast<double>(model.created_unix))};
}

}  // namespace kvasir::server
