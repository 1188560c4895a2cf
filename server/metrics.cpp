#include "server/metrics.h"

#include "core/seconds.h"
#include "server/cancel_causes.h"
#include "server/error_map.h"
#include "server/generate_service.h"
#include "server/metrics_state.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <mutex>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <sstream>
#include <utility>
#include <vector>

namespace kvasir::server {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;
using prometheus::Labels;
using prometheus::MetricFamily;
using Buckets = Histogram::BucketBoundaries;

// Upper bounds in seconds: those of vLLM, so that its dashboards show what they are used to.
const Buckets kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                    0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                    20,    40,    80,   160,  640,  2560};
const Buckets kPerTokenSeconds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                  0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const Buckets kRequestSeconds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
const Buckets kChoices = {1, 2, 5, 10, 20, 50, 100};
// Those of OpenTelemetry's conventions for generative models.
const Buckets kOtelRequestSeconds = {0.01, 0.02, 0.04, 0.08,  0.16,  0.32,  0.64,
                                     1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92};
const Buckets kOtelFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                        0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10};
const Buckets kOtelPerTokenSeconds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                                      0.3,  0.4,   0.5,  0.75,  1,   2.5};

/// 1, 2, 5, 10, ... up to the largest that is not above `most`.
Buckets one_two_five(std::uint64_t most) {
  Buckets bounds;
  for (std::uint64_t ten = 1; ten <= most; ten *= 10) {
    for (const std::uint64_t bound : {ten, 2 * ten, 5 * ten}) {
      if (bound <= most) bounds.push_back(static_cast<double>(bound));
    }
  }
  return bounds;
}

/// Families that stand in the text under a second name as they are.
struct Mirror {
  std::string_view native;
  std::string_view name;
};
constexpr std::array kMirrors = {
    Mirror{"kvasir_running_sequences", "vllm:num_requests_running"},
    Mirror{"kvasir_waiting_sequences", "vllm:num_requests_waiting"},
    Mirror{"kvasir_kv_usage_ratio", "vllm:kv_cache_usage_perc"},
    Mirror{"kvasir_preemptions_total", "vllm:num_preemptions_total"},
    Mirror{"kvasir_prefix_cache_query_tokens_total", "vllm:prefix_cache_queries_total"},
    Mirror{"kvasir_prefix_cache_hit_tokens_total", "vllm:prefix_cache_hits_total"},
    Mirror{"kvasir_prompt_tokens_total", "vllm:prompt_tokens_total"},
    Mirror{"kvasir_generation_tokens_total", "vllm:generation_tokens_total"},
    Mirror{"kvasir_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    Mirror{"kvasir_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"},
    Mirror{"kvasir_request_time_per_output_token_seconds",
           "vllm:request_time_per_output_token_seconds"},
    Mirror{"kvasir_e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"},
    Mirror{"kvasir_request_queue_time_seconds", "vllm:request_queue_time_seconds"},
    Mirror{"kvasir_request_prefill_time_seconds", "vllm:request_prefill_time_seconds"},
    Mirror{"kvasir_request_decode_time_seconds", "vllm:request_decode_time_seconds"},
    Mirror{"kvasir_request_inference_time_seconds", "vllm:request_inference_time_seconds"},
    Mirror{"kvasir_request_prompt_tokens", "vllm:request_prompt_tokens"},
    Mirror{"kvasir_request_generation_tokens", "vllm:request_generation_tokens"},
    Mirror{"kvasir_iteration_tokens", "vllm:iteration_tokens_total"},
    Mirror{"kvasir_request_params_n", "vllm:request_params_n"},
    Mirror{"kvasir_request_params_max_tokens", "vllm:request_params_max_tokens"},
    Mirror{"kvasir_request_max_generation_tokens", "vllm:request_max_num_generation_tokens"},
};

std::string_view finish_name(FinishReason reason) {
  constexpr std::array<std::string_view, 4> kNames = {"stop", "length", "abort", "error"};
  static_assert(static_cast<std::size_t>(FinishReason::kStop) == 0 &&
                static_cast<std::size_t>(FinishReason::kLength) == 1 &&
                static_cast<std::size_t>(FinishReason::kCancelled) == 2 &&
                static_cast<std::size_t>(FinishReason::kError) == 3);
  return kNames.at(static_cast<std::size_t>(reason));
}

/// Stop strings end a sequence well, so that their cause stands in no abort.
constexpr std::array kAbortCauses = {CancelCause::kClientGone, CancelCause::kGrpcCancel,
                                     CancelCause::kDeadline, CancelCause::kSlowClient,
                                     CancelCause::kDrain};
constexpr std::array kOtherReasons = {FinishReason::kStop, FinishReason::kLength,
                                      FinishReason::kError};

Labels finish_labels(FinishReason reason, std::string_view cause) {
  return {{"finish_reason", std::string(finish_name(reason))}, {"cause", std::string(cause)}};
}

Labels otel_labels(Operation operation) {
  return {{"gen_ai_operation_name", operation == Operation::kChat ? "chat" : "text_completion"}};
}

std::string error_type(const RequestReport& report) {
  if (!report.failure) return {};
  return std::string(report.cause ? cancel_cause_name(*report.cause)
                                  : error_mapping(ErrorCode::kInternal).code);
}

/// vllm:request_success_total: one sample for each finish reason, aborts of all causes together.
MetricFamily success_family(const MetricFamily& requests, const Labels& model_labels) {
  MetricFamily family{
      "vllm:request_success_total", requests.help, prometheus::MetricType::Counter, {}};
  for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength,
                                    FinishReason::kCancelled, FinishReason::kError}) {
    prometheus::ClientMetric metric;
    for (const auto& [name, value] : model_labels) metric.label.push_back({name, value});
    metric.label.push_back({"finished_reason", std::string(finish_name(reason))});
    for (const prometheus::ClientMetric& each : requests.metric) {
      const auto is_reason = [reason](const prometheus::ClientMetric::Label& label) {
        return label.name == "finish_reason" && label.value == finish_name(reason);
      };
      if (std::ranges::any_of(each.label, is_reason)) metric.counter.value += each.counter.value;
    }
    family.metric.push_back(std::move(metric));
  }
  return family;
}

/// An allocation may fail while a label is seen for the first time; then it is not counted.
template <typename Function>
void count(const Function& function) noexcept {
  try {
    function();
  } catch (const std::exception& failure) {
    spdlog::warn("a metric could not be counted: {}", failure.what());
  }
}

}  // namespace

struct Metrics::Impl {
  explicit Impl(ModelInfo served) : model(std::move(served)) {
    for (const FinishReason reason : kOtherReasons) static_cast<void>(ended(reason, {}));
    for (const CancelCause cause : kAbortCauses)
      static_cast<void>(ended(FinishReason::kCancelled, cause));
  }

  Family<Counter>& counters(const char* name, const char* help, const Labels& labels) {
    return prometheus::BuildCounter().Name(name).Help(help).Labels(labels).Register(registry);
  }
  Family<Histogram>& histograms(const char* name, const char* help, const Labels& labels) {
    return prometheus::BuildHistogram().Name(name).Help(help).Labels(labels).Register(registry);
  }
  Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return histograms(name, help, model_labels).Add({}, buckets);
  }
  Counter& ended(FinishReason reason, std::optional<CancelCause> cause) {
    return requests.Add(
        finish_labels(reason, cause ? cancel_cause_name(*cause) : std::string_view{}));
  }

  const ModelInfo model;
  const Labels model_labels = {{"model_name", model.served_name}, {"engine", "0"}};
  const Labels otel_model_labels = {{"gen_ai_provider_name", "kvasir"},
                                    {"gen_ai_request_model", model.served_name}};
  const Buckets token_buckets = one_two_five(model.context_tokens);
  prometheus::Registry registry;

  Family<Counter>& requests = counters(
      "kvasir_requests_total", "Sequences that ended, by how and, for aborts, why.", model_labels);
  Family<Counter>& rejected =
      counters("kvasir_rejected_requests_total",
               "Requests refused before they became sequences, by the error's code.", model_labels);
  Counter& prompt_tokens =
      counters("kvasir_prompt_tokens_total", "Prompt tokens, once for all choices of a prompt.",
               model_labels)
          .Add({});
  Counter& generation_tokens = counters("kvasir_generation_tokens_total",
                                        "Generated tokens that count for clients.", model_labels)
                                   .Add({});
  Histogram& first_token =
      histogram("kvasir_time_to_first_token_seconds",
                "Arrival of a request to the first token of each sequence.", kFirstTokenSeconds);
  Histogram& inter_token =
      histogram("kvasir_inter_token_latency_seconds",
                "Time between two tokens of a sequence, one after the other.", kPerTokenSeconds);
  Histogram& per_output_token = histogram(
      "kvasir_request_time_per_output_token_seconds",
      "Mean time for a token after the first, of each complete sequence of at least two tokens.",
      kPerTokenSeconds);
  Histogram& latency =
      histogram("kvasir_e2e_request_latency_seconds",
                "Arrival of a request to the end of each complete sequence.", kRequestSeconds);
  Histogram& queue_time =
      histogram("kvasir_request_queue_time_seconds",
                "Time until a complete sequence was first admitted.", kRequestSeconds);
  Histogram& prefill_time =
      histogram("kvasir_request_prefill_time_seconds",
                "First admission to first token of a complete sequence.", kRequestSeconds);
  Histogram& decode_time =
      histogram("kvasir_request_decode_time_seconds",
                "First token to the end of a complete sequence.", kRequestSeconds);
  Histogram& inference_time =
      histogram("kvasir_request_inference_time_seconds",
                "First admission to the end of a complete sequence.", kRequestSeconds);
  Histogram& request_prompt_tokens = histogram(
      "kvasir_request_prompt_tokens", "Prompt tokens of each complete sequence.", token_buckets);
  Histogram& request_generation_tokens =
      histogram("kvasir_request_generation_tokens", "Generated tokens of each complete sequence.",
                token_buckets);
  Histogram& params_max_tokens =
      histogram("kvasir_request_params_max_tokens",
                "Most tokens that each complete sequence might have generated.", token_buckets);
  Histogram& params_n = histogram("kvasir_request_params_n",
                                  "Choices for each prompt of a started request.", kChoices);
  Histogram& max_generation_tokens =
      histogram("kvasir_request_max_generation_tokens",
                "Generated tokens of the longest sequence of each request that ended complete.",
                token_buckets);

  Family<Histogram>& otel_duration =
      histograms("gen_ai_server_request_duration_seconds",
                 "Arrival of a request to the end of its last sequence.", otel_model_labels);
  Family<Histogram>& otel_first_token =
      histograms("gen_ai_server_time_to_first_token_seconds",
                 "Arrival of a request to its first token.", otel_model_labels);
  Family<Histogram>& otel_per_token = histograms(
      "gen_ai_server_time_per_output_token_seconds",
      "Mean time for a token after the first, of each complete sequence of two tokens or more.",
      otel_model_labels);

  Family<Counter>& http_requests = counters(
      "http_requests_total", "HTTP requests by route template, method and status class.", {});
  Counter& ignored_fields = counters("kvasir_ignored_fields_total",
                                     "Members of request bodies that this build does not know.", {})
                                .Add({});
  Family<Counter>& grpc_calls =
      counters("kvasir_grpc_calls_total", "gRPC calls that ended, by method and status.", {});

  std::mutex grpc_mutex;
  std::function<std::uint32_t()> live_grpc_calls;
};

Metrics::Metrics(const ModelInfo& model) : impl_(std::make_unique<Impl>(model)) {}
Metrics::~Metrics() = default;

void Metrics::count_http_request(std::string_view route, std::string_view method,
                                 int status) noexcept {
  count([&] {
    impl_->http_requests
        .Add({{"handler", std::string(route)},
              {"method", std::string(method)},
              {"status", std::to_string(status / 100) + "xx"}})
        .Increment();
  });
}

void Metrics::count_ignored_fields(std::size_t fields) noexcept {
  impl_->ignored_fields.Increment(static_cast<double>(fields));
}

void Metrics::count_grpc_call(std::string_view method, std::string_view status) noexcept {
  count([&] {
    impl_->grpc_calls.Add({{"method", std::string(method)}, {"status", std::string(status)}})
        .Increment();
  });
}

void Metrics::set_grpc_calls(std::function<std::uint32_t()> live_calls) {
  const std::lock_guard lock(impl_->grpc_mutex);
  impl_->live_grpc_calls = std::move(live_calls);
}

void Metrics::on_refused(ErrorCode code) noexcept {
  count([&] {
    impl_->rejected.Add({{"code", std::string(error_mapping(code).code)}}).Increment();
  });
}

void Metrics::on_abandoned(CancelCause cause, std::uint64_t sequences) noexcept {
  count([&] {
    impl_->ended(FinishReason::kCancelled, cause).Increment(static_cast<double>(sequences));
  });
}

void Metrics::on_started(std::uint32_t n) noexcept { impl_->params_n.Observe(n); }

void Metrics::on_prompt(std::uint32_t prompt_tokens) noexcept {
  impl_->prompt_tokens.Increment(prompt_tokens);
}

void Metrics::on_first_token(Operation operation, bool first_of_request,
                             Duration since_arrival) noexcept {
  impl_->generation_tokens.Increment();
  impl_->first_token.Observe(to_seconds(since_arrival));
  if (!first_of_request) return;
  count([&] {
    impl_->otel_first_token.Add(otel_labels(operation), kOtelFirstTokenSeconds)
        .Observe(to_seconds(since_arrival));
  });
}

void Metrics::on_next_token(Duration since_last) noexcept {
  impl_->generation_tokens.Increment();
  impl_->inter_token.Observe(to_seconds(since_last));
}

void Metrics::on_sequence_end(Operation operation, const SequenceReport& report) noexcept {
  count([&] { impl_->ended(report.reason, report.cause).Increment(); });
  if (!report.complete()) return;
  impl_->latency.Observe(to_seconds(report.latency));
  impl_->queue_time.Observe(to_seconds(report.queue_time));
  impl_->prefill_time.Observe(to_seconds(report.prefill_time));
  impl_->decode_time.Observe(to_seconds(report.decode_time));
  impl_->inference_time.Observe(to_seconds(report.prefill_time + report.decode_time));
  impl_->request_prompt_tokens.Observe(report.prompt_tokens);
  impl_->request_generation_tokens.Observe(report.completion_tokens);
  impl_->params_max_tokens.Observe(report.max_tokens);
  if (report.completion_tokens < 2) return;
  const double per_token = to_seconds(report.decode_time) / (report.completion_tokens - 1);
  impl_->per_output_token.Observe(per_token);
  count([&] {
    impl_->otel_per_token.Add(otel_labels(operation), kOtelPerTokenSeconds).Observe(per_token);
  });
}

void Metrics::on_request_end(const RequestReport& report) noexcept {
  if (!report.failure) impl_->max_generation_tokens.Observe(report.max_completion_tokens);
  count([&] {
    Labels labels = otel_labels(report.operation);
    if (report.failure) labels["error_type"] = error_type(report);
    impl_->otel_duration.Add(labels, kOtelRequestSeconds).Observe(to_seconds(report.latency));
  });
}

std::string Metrics::text(const Scrape& scrape) const {
  std::vector<MetricFamily> families =
      engine_families(scrape.engine, impl_->model, impl_->model_labels);
  std::vector<MetricFamily> counted = impl_->registry.Collect();
  std::ranges::move(counted, std::back_inserter(families));
  std::vector<MetricFamily> mirrored;
  for (MetricFamily& family : families) {
    // The library keeps samples by hash: put them into an order that does not show it.
    std::ranges::sort(family.metric, {}, &prometheus::ClientMetric::label);
    const auto mirror = std::ranges::find(kMirrors, family.name, &Mirror::native);
    if (mirror != kMirrors.end()) {
      mirrored.push_back(family);
      mirrored.back().name = mirror->name;
    }
    if (family.name == "kvasir_requests_total")
      mirrored.push_back(success_family(family, impl_->model_labels));
  }
  std::ranges::move(mirrored, std::back_inserter(families));
  std::ranges::move(info_families(scrape, impl_->model, impl_->model_labels),
                    std::back_inserter(families));
  std::ranges::move(process_families(impl_->model), std::back_inserter(families));
  families.push_back(
      gauge_family("kvasir_http_connections", "Open HTTP connections.", scrape.http_connections));
  {
    const std::lock_guard lock(impl_->grpc_mutex);
    if (impl_->live_grpc_calls) {
      families.push_back(gauge_family("kvasir_grpc_calls", "gRPC calls in flight, watches aside.",
                                      impl_->live_grpc_calls()));
    }
  }
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace kvasir::server
