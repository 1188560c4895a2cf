// What GET /metrics says: counters and histograms of requests as they happen, the engine's and the
// process's state at the moment of the scrape, all under our own names and those that dashboards
// and autoscalers read. docs/METRICS.md lists them. Label values come from closed sets only.
#pragma once

#include "engine/step_stats.h"
#include "server/request_observer.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace kvasir::server {

struct ModelInfo;

/// What the door that is asked knows and the metrics do not.
struct Scrape {
  engine::EngineStatus engine;
  std::uint32_t http_connections = 0;
  std::string_view version{};
  std::string_view commit{};
  std::string_view build{};
};

/// Any thread. Counting takes a lock of its own for some dozens of nanoseconds.
class Metrics final : public RequestObserver {
 public:
  explicit Metrics(const ModelInfo& model);
  ~Metrics() override;
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  /// `route` is a template and `method` a known one: never what a client made up.
  void count_http_request(std::string_view route, std::string_view method, int status) noexcept;
  void count_ignored_fields(std::size_t fields) noexcept;
  /// `method` is ours, `status` as gRPC spells it.
  void count_grpc_call(std::string_view method, std::string_view status) noexcept;
  /// Asked at each scrape; must hold whatever it reads.
  void set_grpc_calls(std::function<std::uint32_t()> live_calls);

  void on_refused(ErrorCode code) noexcept override;
  void on_abandoned(CancelCause cause, std::uint64_t sequences) noexcept override;
  void on_started(std::uint32_t n) noexcept override;
  void on_prompt(std::uint32_t prompt_tokens) noexcept override;
  void on_first_token(Operation operation, bool first_of_request,
                      Duration since_arrival) noexcept override;
  void on_next_token(Duration since_last) noexcept override;
  void on_sequence_end(Operation operation, const SequenceReport& report) noexcept override;
  void on_request_end(const RequestReport& report) noexcept override;

  /// Prometheus text, version 0.0.4.
  [[nodiscard]] std::string text(const Scrape& scrape) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::server
