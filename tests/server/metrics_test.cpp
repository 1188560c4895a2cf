// What GET /metrics says of what it was told: buckets, sums and counts, reasons and causes, and
// that the names of others show the same numbers.
#include "server/metrics.h"

#include "server/cancel_causes.h"
#include "server/generate_service.h"
#include "tests/support/catch.h"

#include <chrono>
#include <map>
#include <sstream>
#include <string>
#include <vector>

using namespace kvasir;
using namespace kvasir::server;
using namespace std::chrono_literals;

namespace {

using Samples = std::map<std::string, double>;  // by series as the text has it

const std::string kModel = R"(engine="0",model_name="m")";

struct Harness {
  explicit Harness(const std::string& served_name = "m") : metrics(model(served_name)) {}

  static ModelInfo model(const std::string& served_name) {
    ModelInfo info;
    info.served_name = served_name;
    info.context_tokens = 100;
    info.geometry.block_tokens = 16;
    info.kv_budget_bytes = 1050;
    return info;
  }
  [[nodiscard]] std::string text() const {
    return metrics.text(
        {.engine = status, .http_connections = 3, .version = "1", .commit = "c", .build = "b"});
  }
  [[nodiscard]] Samples samples() const {
    Samples samples;
    std::istringstream lines(text());
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with('#')) continue;
      const std::size_t space = line.rfind(' ');
      REQUIRE(samples.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second);
    }
    return samples;
  }
  [[nodiscard]] double value(const std::string& name, const std::string& labels = kModel) const {
    const Samples all = samples();
    const auto found = all.find(labels.empty() ? name : name + "{" + labels + "}");
    INFO(name << "{" << labels << "}");
    REQUIRE(found != all.end());
    return found->second;
  }
  [[nodiscard]] double requests(const std::string& reason, const std::string& cause) const {
    return value("kvasir_requests_total",
                 kModel + ",cause=\"" + cause + "\",finish_reason=\"" + reason + "\"");
  }

  Metrics metrics;
  engine::EngineStatus status;
};

/// Prompt 7, 4 tokens of at most 9; 1 s in the queue, 2 s prefill, 3 s decode, 6.5 s in all.
SequenceReport complete_report(FinishReason reason = FinishReason::kLength) {
  SequenceReport report;
  report.reason = reason;
  report.prompt_tokens = 7;
  report.completion_tokens = 4;
  report.max_tokens = 9;
  report.latency = 6500ms;
  report.queue_time = 1s;
  report.prefill_time = 2s;
  report.decode_time = 3s;
  return report;
}

SequenceReport aborted_report(CancelCause cause) {
  SequenceReport report = complete_report(FinishReason::kCancelled);
  report.cause = cause;
  return report;
}

std::vector<std::string> bounds_of(const Samples& samples, const std::string& name,
                                   const std::string& labels = kModel) {
  std::map<double, std::string> bounds;
  const std::string start = name + "_bucket{" + labels + ",le=\"";
  for (const auto& [series, value] : samples) {
    if (!series.starts_with(start)) continue;
    const std::string bound = series.substr(start.size(), series.size() - start.size() - 2);
    bounds[bound == "+Inf" ? 1e300 : std::stod(bound)] = bound;
  }
  std::vector<std::string> ordered;
  for (const auto& [number, text] : bounds) ordered.push_back(text);
  return ordered;
}

}  // namespace

TEST_CASE(
    "Metrics: buckets are cumulative, a value on a bound is below it, sum and count are exact",
    "[server]") {
  Harness harness;
  for (const Duration gap : {Duration(10ms), Duration(11ms), Duration(80s), Duration(81s)})
    harness.metrics.on_next_token(gap);
  for (const std::string name :
       {"kvasir_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"}) {
    const auto bucket = [&](const std::string& bound) {
      return harness.value(name + "_bucket", kModel + ",le=\"" + bound + "\"");
    };
    CHECK(bucket("0.01") == 1);
    CHECK(bucket("0.025") == 2);
    CHECK(bucket("40") == 2);
    CHECK(bucket("80") == 3);
    CHECK(bucket("+Inf") == 4);
    CHECK(harness.value(name + "_count") == 4);
    CHECK(harness.value(name + "_sum") == Approx(161.021).epsilon(1e-12));
  }
  CHECK(harness.value("kvasir_generation_tokens_total") == 4);
}

TEST_CASE("Metrics: the buckets are those that dashboards of vLLM and OpenTelemetry expect",
          "[server]") {
  Harness harness;
  harness.metrics.on_first_token(Operation::kChat, true, 3s);
  harness.metrics.on_request_end({.operation = Operation::kChat, .failure = {}, .cause = {}});
  const Samples samples = harness.samples();
  using Bounds = std::vector<std::string>;
  CHECK(bounds_of(samples, "vllm:time_to_first_token_seconds") ==
        Bounds{"0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1",
               "0.25",  "0.5",   "0.75", "1",    "2.5",  "5",    "7.5",  "10",
               "20",    "40",    "80",   "160",  "640",  "2560", "+Inf"});
  const Bounds per_token = {"0.01", "0.025", "0.05", "0.075", "0.1", "0.15", "0.2",
                            "0.3",  "0.4",   "0.5",  "0.75",  "1",   "2.5",  "5",
                            "7.5",  "10",    "20",   "40",    "80",  "+Inf"};
  CHECK(bounds_of(samples, "vllm:inter_token_latency_seconds") == per_token);
  CHECK(bounds_of(samples, "vllm:request_time_per_output_token_seconds") == per_token);
  const Bounds request = {"0.3", "0.5", "0.8", "1",    "1.5",  "2",   "2.5", "5",
                          "10",  "15",  "20",  "30",   "40",   "50",  "60",  "120",
                          "240", "480", "960", "1920", "7680", "+Inf"};
  for (const std::string name :
       {"vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds",
        "vllm:request_inference_time_seconds"}) {
    INFO(name);
    CHECK(bounds_of(samples, name) == request);
  }
  // Up to the context, which is 100 tokens here.
  const Bounds tokens = {"1", "2", "5", "10", "20", "50", "100", "+Inf"};
  for (const std::string name :
       {"vllm:request_prompt_tokens", "vllm:request_generation_tokens", "vllm:request_params_n",
        "vllm:request_params_max_tokens", "vllm:request_max_num_generation_tokens"}) {
    INFO(name);
    CHECK(bounds_of(samples, name) == tokens);
  }
  CHECK(bounds_of(samples, "vllm:iteration_tokens_total") ==
        Bounds{"1", "2", "5", "10", "20", "50", "100", "200", "500", "1000", "2000", "5000",
               "10000", "+Inf"});
  const std::string otel =
      R"(gen_ai_provider_name="kvasir",gen_ai_request_model="m",gen_ai_operation_name="chat")";
  CHECK(bounds_of(samples, "gen_ai_server_request_duration_seconds", otel) ==
        Bounds{"0.01", "0.02", "0.04", "0.08", "0.16", "0.32", "0.64", "1.28", "2.56", "5.12",
               "10.24", "20.48", "40.96", "81.92", "+Inf"});
}

TEST_CASE("Metrics: each end of a sequence counts under its reason and cause", "[server]") {
  Harness harness;
  CHECK(harness.requests("stop", "") == 0);  // there before anything happened
  CHECK(harness.requests("abort", "drain") == 0);
  harness.metrics.on_sequence_end(Operation::kChat, complete_report(FinishReason::kStop));
  for (int i = 0; i < 2; ++i)
    harness.metrics.on_sequence_end(Operation::kChat, complete_report(FinishReason::kLength));
  double expected = 3;
  for (const CancelCause cause :
       {CancelCause::kClientGone, CancelCause::kGrpcCancel, CancelCause::kDeadline,
        CancelCause::kSlowClient, CancelCause::kDrain}) {
    for (int i = 0; i < expected; ++i)
      harness.metrics.on_sequence_end(Operation::kTextCompletion, aborted_report(cause));
    CHECK(harness.requests("abort", std::string(cancel_cause_name(cause))) == expected);
    ++expected;
  }
  for (int i = 0; i < 8; ++i)
    harness.metrics.on_sequence_end(Operation::kChat, complete_report(FinishReason::kError));
  CHECK(harness.requests("stop", "") == 1);
  CHECK(harness.requests("length", "") == 2);
  CHECK(harness.requests("error", "") == 8);
  const auto success = [&](const std::string& reason) {
    return harness.value("vllm:request_success_total",
                         kModel + ",finished_reason=\"" + reason + "\"");
  };
  CHECK(success("stop") == 1);
  CHECK(success("length") == 2);
  CHECK(success("abort") == 3 + 4 + 5 + 6 + 7);
  CHECK(success("error") == 8);
  CHECK(harness.samples().contains("kvasir_requests_total{" + kModel +
                                   R"(,cause="stop_string",finish_reason="abort"})") == false);
}

TEST_CASE("Metrics: only complete sequences are in the histograms of sequences", "[server]") {
  Harness harness;
  for (const CancelCause cause : {CancelCause::kClientGone, CancelCause::kDrain})
    harness.metrics.on_sequence_end(Operation::kChat, aborted_report(cause));
  harness.metrics.on_sequence_end(Operation::kChat, complete_report(FinishReason::kError));
  harness.metrics.on_sequence_end(Operation::kChat, complete_report());
  const std::map<std::string, double> sums = {
      {"kvasir_e2e_request_latency_seconds", 6.5},
      {"kvasir_request_queue_time_seconds", 1},
      {"kvasir_request_prefill_time_seconds", 2},
      {"kvasir_request_decode_time_seconds", 3},
      {"kvasir_request_inference_time_seconds", 5},
      {"kvasir_request_prompt_tokens", 7},
      {"kvasir_request_generation_tokens", 4},
      {"kvasir_request_params_max_tokens", 9},
      {"kvasir_request_time_per_output_token_seconds", 1},
  };
  for (const auto& [name, sum] : sums) {
    CHECK(harness.value(name + "_count") == 1);
    CHECK(harness.value(name + "_sum") == sum);
  }
  SequenceReport one_token = complete_report();
  one_token.completion_tokens = 1;
  harness.metrics.on_sequence_end(Operation::kChat, one_token);
  CHECK(harness.value("kvasir_e2e_request_latency_seconds_count") == 2);
  CHECK(harness.value("kvasir_request_time_per_output_token_seconds_count") == 1);
}

TEST_CASE("Metrics: requests have their choices, their longest sequence and their failure",
          "[server]") {
  Harness harness;
  harness.metrics.on_started(3);
  harness.metrics.on_prompt(7);
  harness.metrics.on_request_end({.operation = Operation::kChat,
                                  .failure = {},
                                  .cause = {},
                                  .max_completion_tokens = 4,
                                  .latency = 2s});
  harness.metrics.on_request_end({.operation = Operation::kTextCompletion,
                                  .failure = FinishReason::kCancelled,
                                  .cause = CancelCause::kDeadline,
                                  .max_completion_tokens = 2,
                                  .latency = 1s});
  harness.metrics.on_request_end({.operation = Operation::kTextCompletion,
                                  .failure = FinishReason::kError,
                                  .cause = {},
                                  .max_completion_tokens = 2,
                                  .latency = 1s});
  CHECK(harness.value("kvasir_request_params_n_sum") == 3);
  CHECK(harness.value("kvasir_prompt_tokens_total") == 7);
  CHECK(harness.value("vllm:prompt_tokens_total") == 7);
  CHECK(harness.value("kvasir_request_max_generation_tokens_count") == 1);
  CHECK(harness.value("kvasir_request_max_generation_tokens_sum") == 4);
  const auto duration = [&](const std::string& more) {
    return harness.value("gen_ai_server_request_duration_seconds_count",
                         R"(gen_ai_provider_name="kvasir",gen_ai_request_model="m",)" + more);
  };
  CHECK(duration(R"(gen_ai_operation_name="chat")") == 1);
  CHECK(duration(R"(error_type="deadline",gen_ai_operation_name="text_completion")") == 1);
  CHECK(duration(R"(error_type="internal_error",gen_ai_operation_name="text_completion")") == 1);
}

TEST_CASE("Metrics: the first token of a request is OpenTelemetry's, of each sequence vLLM's",
          "[server]") {
  Harness harness;
  harness.metrics.on_first_token(Operation::kChat, true, 3s);
  harness.metrics.on_first_token(Operation::kChat, false, 4s);
  CHECK(harness.value("vllm:time_to_first_token_seconds_count") == 2);
  CHECK(harness.value("vllm:time_to_first_token_seconds_sum") == 7);
  CHECK(
      harness.value(
          "gen_ai_server_time_to_first_token_seconds_sum",
          R"(gen_ai_provider_name="kvasir",gen_ai_request_model="m",gen_ai_operation_name="chat")") ==
      3);
  CHECK(harness.value("vllm:generation_tokens_total") == 2);
}

TEST_CASE("Metrics: what became no sequence is refused by its code or aborted by its cause",
          "[server]") {
  Harness harness;
  harness.metrics.on_refused(ErrorCode::kQueueFull);
  harness.metrics.on_refused(ErrorCode::kInvalidValue);
  harness.metrics.on_refused(ErrorCode::kInvalidValue);
  harness.metrics.on_abandoned(CancelCause::kGrpcCancel, 6);
  const auto rejected = [&](const std::string& code) {
    return harness.value("kvasir_rejected_requests_total", kModel + ",code=\"" + code + "\"");
  };
  CHECK(rejected("queue_full") == 1);
  CHECK(rejected("invalid_value") == 2);
  CHECK(harness.requests("abort", "grpc_cancel") == 6);
}

TEST_CASE("Metrics: the engine's status is read at the scrape", "[server]") {
  Harness harness;
  harness.status.running_sequences = 2;
  harness.status.waiting_sequences = 5;
  harness.status.total_blocks = 10;
  harness.status.free_blocks = 6;
  harness.status.live_blocks = 4;
  harness.status.cached_blocks = 1;
  harness.status.bytes_per_block = 100;
  harness.status.draining = true;
  harness.status.steps_total = 11;
  harness.status.computed_tokens_total = 612;
  harness.status.recomputed_tokens_total = 13;
  harness.status.wasted_tokens_total = 14;
  harness.status.prefix_query_tokens_total = 20;
  harness.status.prefix_hit_tokens_total = 16;
  harness.status.preemptions_total = 17;
  harness.status.reserved_blocks = 3;
  harness.status.taken_blocks_total = 31;
  harness.status.returned_blocks_total = 32;
  harness.status.window_returned_blocks_total = 33;
  harness.status.reclaimed_blocks_total = 34;
  harness.status.audited_prefixes_total = 35;
  harness.status.audited_tokens_total = 36;
  harness.status.audit_mismatches_total = 37;
  harness.status.audits_given_up_total = 38;
  harness.status.dropped_blocks_total = 39;
  harness.status.execute_time_total = 1500ms;
  harness.status.step_time_total = 2500ms;
  harness.status.steps_by_tokens[0] = 8;   // of one token
  harness.status.steps_by_tokens[2] = 2;   // of three to five
  harness.status.steps_by_tokens[13] = 1;  // of more than 10,000
  const std::map<std::string, double> expected = {
      {"kvasir_running_sequences", 2},
      {"vllm:num_requests_running", 2},
      {"kvasir_waiting_sequences", 5},
      {"vllm:num_requests_waiting", 5},
      {"kvasir_kv_budget_bytes", 1050},
      {"kvasir_kv_live_bytes", 400},
      {"kvasir_kv_cached_bytes", 100},
      {"kvasir_kv_free_bytes", 600},
      {"kvasir_kv_usage_ratio", 0.4},
      {"vllm:kv_cache_usage_perc", 0.4},
      {"kvasir_draining", 1},
      {"kvasir_steps_total", 11},
      {"kvasir_computed_tokens_total", 612},
      {"kvasir_recomputed_tokens_total", 13},
      {"kvasir_wasted_tokens_total", 14},
      {"kvasir_kv_reserved_bytes", 300},
      {"kvasir_kv_taken_blocks_total", 31},
      {"kvasir_kv_returned_blocks_total", 32},
      {"kvasir_kv_window_returned_blocks_total", 33},
      {"kvasir_kv_reclaimed_blocks_total", 34},
      {"kvasir_kv_audited_prefixes_total", 35},
      {"kvasir_kv_audited_tokens_total", 36},
      {"kvasir_kv_audit_mismatches_total", 37},
      {"kvasir_kv_audits_given_up_total", 38},
      {"kvasir_kv_dropped_blocks_total", 39},
      {"kvasir_prefix_cache_miss_tokens_total", 4},
      {"kvasir_prefix_cache_query_tokens_total", 20},
      {"vllm:prefix_cache_queries_total", 20},
      {"kvasir_prefix_cache_hit_tokens_total", 16},
      {"vllm:prefix_cache_hits_total", 16},
      {"kvasir_preemptions_total", 17},
      {"vllm:num_preemptions_total", 17},
      {"kvasir_execute_seconds_total", 1.5},
      {"kvasir_step_seconds_total", 2.5},
      {"kvasir_iteration_tokens_count", 11},
      {"vllm:iteration_tokens_total_sum", 612},
  };
  for (const auto& [name, value] : expected) CHECK(harness.value(name) == value);
  const auto steps = [&](const std::string& bound) {
    return harness.value("vllm:iteration_tokens_total_bucket", kModel + ",le=\"" + bound + "\"");
  };
  CHECK(steps("1") == 8);
  CHECK(steps("2") == 8);
  CHECK(steps("5") == 10);
  CHECK(steps("10000") == 10);
  CHECK(steps("+Inf") == 11);
  CHECK(harness.value("vllm:cache_config_info",
                      R"(block_size="16",engine="0",model_name="m",num_gpu_blocks="10")") == 1);
  CHECK(harness.value("kvasir_build_info", R"(build="b",commit="c",version="1")") == 1);
  CHECK(harness.value("kvasir_http_connections", "") == 3);
  CHECK(harness.value("process_resident_memory_bytes", "") > 1e6);
  CHECK(harness.value("process_open_fds", "") >= 3);
  CHECK(harness.value("process_cpu_seconds_total", "") > 0);
}

TEST_CASE("Metrics: doors count their requests, and gRPC is asked for its live calls", "[server]") {
  Harness harness;
  CHECK(!harness.samples().contains("kvasir_grpc_calls"));
  harness.metrics.count_http_request("/v1/models/{id}", "GET", 200);
  harness.metrics.count_http_request("/v1/models/{id}", "GET", 204);
  harness.metrics.count_http_request("/v1/models/{id}", "GET", 404);
  harness.metrics.count_ignored_fields(3);
  harness.metrics.count_grpc_call("Complete", "OK");
  harness.metrics.set_grpc_calls([] { return 4U; });
  const auto http = [&](const std::string& status) {
    return harness.value("http_requests_total",
                         R"(handler="/v1/models/{id}",method="GET",status=")" + status + '"');
  };
  CHECK(http("2xx") == 2);
  CHECK(http("4xx") == 1);
  CHECK(harness.value("kvasir_ignored_fields_total", "") == 3);
  CHECK(harness.value("kvasir_grpc_calls_total", R"(method="Complete",status="OK")") == 1);
  CHECK(harness.value("kvasir_grpc_calls", "") == 4);
}

TEST_CASE("Metrics: the served name is escaped wherever it stands", "[server]") {
  Harness harness("a\"b\\c\nd{}");
  const std::string escaped = R"(a\"b\\c\nd{})";
  CHECK(harness.value("vllm:num_requests_running", R"(engine="0",model_name=")" + escaped + '"') ==
        0);
  std::istringstream lines(harness.text());
  for (std::string line; std::getline(lines, line);)
    CHECK((line.starts_with("# ") || line.find("model_name=\"a\"") == std::string::npos));
}

TEST_CASE("Metrics: the order of samples does not depend on that of what was counted", "[server]") {
  const std::vector<std::string> routes = {"/a", "/b", "/c", "/d", "/e", "/f", "/g", "/h"};
  Harness forward;
  Harness backward;
  for (std::size_t i = 0; i < routes.size(); ++i) {
    forward.metrics.count_http_request(routes[i], "GET", 200);
    backward.metrics.count_http_request(routes[routes.size() - 1 - i], "GET", 200);
  }
  const auto handlers = [](const std::string& text) {
    std::string found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("http_requests_total")) found += line + '\n';
    return found;
  };
  CHECK(handlers(forward.text()) == handlers(backward.text()));
  CHECK(handlers(forward.text()).find("/a") < handlers(forward.text()).find("/h"));
}
