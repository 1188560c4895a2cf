#include "server/http/metrics.h"

#include "core/seconds.h"
#include "server/http/json_writer.h"
#include "server/shown_value.h"

#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace kvasir::server {
namespace {

/// In the order of CancelCause.
constexpr std::array<std::string_view, 6> kCauses = {"stop_string", "client_gone", "grpc_cancel",
                                                     "deadline",    "slow_client", "drain"};
static_assert(kCauses.size() == std::tuple_size_v<decltype(engine::EngineStatus::cancelled_total)>);
static_assert(static_cast<std::size_t>(CancelCause::kStopString) == 0 &&
              static_cast<std::size_t>(CancelCause::kClientGone) == 1 &&
              static_cast<std::size_t>(CancelCause::kGrpcCancel) == 2 &&
              static_cast<std::size_t>(CancelCause::kDeadline) == 3 &&
              static_cast<std::size_t>(CancelCause::kSlowClient) == 4 &&
              static_cast<std::size_t>(CancelCause::kDrain) == 5);

std::string escaped_label(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  return text;
}

class MetricsText {
 public:
  explicit MetricsText(std::string common_labels) : common_(std::move(common_labels)) {}

  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    text_ += "# HELP " + name_ + " " + std::string(help) + "\n# TYPE " + name_ + " " +
             std::string(type) + "\n";
  }
  void sample(double value, const std::string& labels = {}) { line(shown_value(value), labels); }
  void sample(std::uint64_t value, const std::string& labels = {}) {
    line(std::to_string(value), labels);
  }
  /// Without the model's labels.
  void plain(double value) { text_ += name_ + " " + shown_value(value) + "\n"; }
  void labelled(std::uint64_t value, const std::string& labels) {
    text_ += name_ + "{" + labels + "} " + std::to_string(value) + "\n";
  }
  void counter(std::string_view name, std::string_view help, std::uint64_t value) {
    family(name, "counter", help);
    sample(value);
  }
  void gauge(std::string_view name, std::string_view help, double value) {
    family(name, "gauge", help);
    sample(value);
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  void line(const std::string& value, const std::string& labels) {
    text_ += name_ + "{" + common_ + (labels.empty() ? "" : ",") + labels + "} " + value + "\n";
  }

  std::string common_;
  std::string name_;
  std::string text_;
};

double usage_fraction(const engine::EngineStatus& status) {
  return status.total_blocks == 0 ? 0.0
                                  : static_cast<double>(status.live_blocks) / status.total_blocks;
}

void append_requests(MetricsText& out, const engine::EngineStatus& status) {
  out.family("kvasir_requests_total", "counter", "Sequences that ended, by how and why.");
  const auto stop_string = static_cast<std::size_t>(CancelCause::kStopString);
  out.sample(status.finished_stop_total, R"(finish_reason="stop",cause="")");
  out.sample(status.finished_length_total, R"(finish_reason="length",cause="")");
  out.sample(status.finished_error_total, R"(finish_reason="error",cause="")");
  for (std::size_t i = 0; i < kCauses.size(); ++i) {
    if (i == stop_string) continue;  // those are stops
    out.sample(status.cancelled_total.at(i),
               R"(finish_reason="abort",cause=")" + std::string(kCauses.at(i)) + "\"");
  }
}

void append_native(MetricsText& out, const engine::EngineStatus& status, const ModelInfo& model) {
  const std::uint64_t block = status.bytes_per_block;
  out.gauge("kvasir_running_sequences", "Sequences that run.", status.running_sequences);
  out.gauge("kvasir_waiting_sequences", "Sequences that wait for their first step.",
            status.waiting_sequences);
  out.gauge("kvasir_kv_budget_bytes", "The KV budget.", static_cast<double>(model.kv_budget_bytes));
  out.gauge("kvasir_kv_live_bytes", "KV bytes of running sequences.",
            static_cast<double>(status.live_blocks * block));
  out.gauge("kvasir_kv_cached_bytes", "KV bytes kept for later prefixes.",
            static_cast<double>(status.cached_blocks * block));
  out.counter("kvasir_steps_total", "Engine steps.", status.steps_total);
  out.counter("kvasir_computed_tokens_total", "Token passes.", status.computed_tokens_total);
  out.counter("kvasir_recomputed_tokens_total", "Token passes repeated after preemption.",
              status.recomputed_tokens_total);
  out.counter("kvasir_wasted_tokens_total", "Tokens computed past a stop string.",
              status.wasted_tokens_total);
  out.counter("kvasir_rejected_total",
              "Sequences that ended as one that can never fit or whose deadline passed.",
              status.rejected_total);
  out.family("kvasir_execute_seconds_total", "counter", "Time in the model's forward pass.");
  out.sample(to_seconds(status.execute_time_total));
  out.family("kvasir_step_seconds_total", "counter", "Time in engine steps.");
  out.sample(to_seconds(status.step_time_total));
}

void append_mirror(MetricsText& out, const engine::EngineStatus& status, const ModelInfo& model) {
  out.gauge("vllm:num_requests_running", "Sequences that run.", status.running_sequences);
  out.gauge("vllm:num_requests_waiting", "Sequences that wait.", status.waiting_sequences);
  out.gauge("vllm:kv_cache_usage_perc", "Live KV bytes over the budget, 0 to 1.",
            usage_fraction(status));
  out.family("vllm:cache_config_info", "gauge", "Shape of the KV cache.");
  out.sample(1.0, "block_size=\"" + std::to_string(model.geometry.block_tokens) +
                      "\",num_gpu_blocks=\"" + std::to_string(status.total_blocks) + "\"");
  out.counter("vllm:num_preemptions_total", "Preemptions.", status.preemptions_total);
  out.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
              status.prefix_query_tokens_total);
  out.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
              status.prefix_hit_tokens_total);
  out.counter("vllm:prompt_tokens_total", "Prompt tokens.", status.prompt_tokens_total);
  out.counter("vllm:generation_tokens_total", "Generated tokens.", status.generation_tokens_total);
  out.family("vllm:request_success_total", "counter", "Sequences that ended, by reason.");
  std::uint64_t aborted = 0;
  for (std::size_t i = 0; i < kCauses.size(); ++i) {
    if (i != static_cast<std::size_t>(CancelCause::kStopString))
      aborted += status.cancelled_total.at(i);
  }
  out.sample(status.finished_stop_total, R"(finished_reason="stop")");
  out.sample(status.finished_length_total, R"(finished_reason="length")");
  out.sample(aborted, R"(finished_reason="abort")");
  out.sample(status.finished_error_total, R"(finished_reason="error")");
}

void append_process(MetricsText& out, const ModelInfo& model) {
  std::uint64_t total_pages = 0;
  std::uint64_t resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  out.family("process_resident_memory_bytes", "gauge", "Resident memory.");
  out.plain(static_cast<double>(resident_pages) * static_cast<double>(sysconf(_SC_PAGESIZE)));
  std::error_code ec;
  const auto fds = std::filesystem::directory_iterator("/proc/self/fd", ec);
  out.family("process_open_fds", "gauge", "Open file descriptors.");
  out.plain(ec ? 0.0
               : static_cast<double>(std::distance(fds, std::filesystem::directory_iterator())));
  std::timespec cpu{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  out.family("process_cpu_seconds_total", "counter", "User and system time.");
  out.plain(static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9);
  out.family("process_start_time_seconds", "gauge", "Start of the process, unix time.");
  out.plain(static_cast<double>(model.created_unix));
}

}  // namespace

void HttpMetrics::count_request(std::string_view route, std::string_view method, int status) {
  const char status_class = static_cast<char>('0' + status / 100);
  const std::lock_guard lock(mutex_);
  ++requests_[{std::string(route), std::string(method), status_class}];
}

std::string HttpMetrics::text(const GenerateService& service,
                              std::uint32_t open_connections) const {
  const ModelInfo& model = service.model();
  const engine::EngineStatus status = service.status();
  MetricsText out("model_name=\"" + escaped_label(model.served_name) + "\",engine=\"0\"");
  append_requests(out, status);
  append_native(out, status, model);
  append_mirror(out, status, model);
  append_process(out, model);
  out.family("kvasir_http_connections", "gauge", "Open HTTP connections.");
  out.plain(open_connections);
  out.family("kvasir_ignored_fields_total", "counter",
             "Members of request bodies that this build does not know.");
  out.plain(static_cast<double>(ignored_fields_.load()));
  out.family("http_requests_total", "counter",
             "HTTP requests by route template, method and status class.");
  const std::lock_guard lock(mutex_);
  for (const auto& [key, count] : requests_) {
    const auto& [route, method, status_class] = key;
    out.labelled(count, "handler=\"" + route + "\",method=\"" + method + "\",status=\"" +
                            status_class + "xx\"");
  }
  return out.take();
}

std::string kv_status_body(const GenerateService& service) {
  const engine::EngineStatus status = service.status();
  const ModelInfo& model = service.model();
  const std::uint64_t block = status.bytes_per_block;
  JsonWriter json;
  json.begin_object().member("object", "kv.status").member("model", model.served_name);
  json.member("kv_type", kvcache::kv_type_name(model.geometry.type));
  json.member("block_tokens", model.geometry.block_tokens);
  json.member("bytes_per_token", model.geometry.bytes_per_token()).member("bytes_per_block", block);
  json.member("budget_bytes", model.kv_budget_bytes);
  json.member("total_blocks", status.total_blocks).member("free_blocks", status.free_blocks);
  json.member("live_blocks", status.live_blocks).member("cached_blocks", status.cached_blocks);
  json.member("live_bytes", status.live_blocks * block)
      .member("cached_bytes", status.cached_blocks * block);
  json.member("running_sequences", status.running_sequences)
      .member("waiting_sequences", status.waiting_sequences);
  json.key("draining").boolean(status.draining);
  json.member("steps_total", status.steps_total)
      .member("prompt_tokens_total", status.prompt_tokens_total);
  json.member("generation_tokens_total", status.generation_tokens_total);
  json.member("computed_tokens_total", status.computed_tokens_total);
  json.member("recomputed_tokens_total", status.recomputed_tokens_total);
  json.member("wasted_tokens_total", status.wasted_tokens_total);
  json.member("prefix_query_tokens_total", status.prefix_query_tokens_total);
  json.member("prefix_hit_tokens_total", status.prefix_hit_tokens_total);
  json.member("preemptions_total", status.preemptions_total)
      .member("rejected_total", status.rejected_total);
  json.member("finished_stop_total", status.finished_stop_total);
  json.member("finished_length_total", status.finished_length_total);
  json.member("finished_error_total", status.finished_error_total);
  json.key("cancelled_total").begin_object();
  for (std::size_t i = 0; i < kCauses.size(); ++i)
    json.member(kCauses.at(i), status.cancelled_total.at(i));
  json.end_object().end_object();
  return json.take();
}

}  // namespace kvasir::server
