// What the REST door counts by itself, and the text of GET /metrics: the engine's counters under
// our own names and under those that dashboards and autoscalers read. Label values come from closed
// sets only.
#pragma once

#include "server/generate_service.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>

namespace kvasir::server {

class HttpMetrics {
 public:
  /// `route` is a template and `method` a known one: never what a client made up.
  void count_request(std::string_view route, std::string_view method, int status);
  void count_ignored_fields(std::size_t fields) { ignored_fields_.fetch_add(fields); }

  /// Prometheus text, version 0.0.4.
  [[nodiscard]] std::string text(const GenerateService& service,
                                 std::uint32_t open_connections) const;

 private:
  using Key =
      std::tuple<std::string, std::string, char>;  // route, method, first digit of the status
  mutable std::mutex mutex_;
  std::map<Key, std::uint64_t> requests_;
  std::atomic<std::uint64_t> ignored_fields_{0};
};

/// The JSON of GET /v1/kv/status.
[[nodiscard]] std::string kv_status_body(const GenerateService& service);

}  // namespace kvasir::server
