// What all connections of one REST door share: options, the service, counters, the bounds that hold
// for all of them together, and the set of open sessions.
#pragma once

#include "core/clock.h"
#include "server/http/byte_budget.h"
#include "server/http/cors.h"
#include "server/http/http_server.h"
#include "server/http/tls_context.h"

#include <boost/asio/thread_pool.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace kvasir::server {

class HttpSession;

/// Which of the door's listeners a connection came by: each serves its own paths.
enum class DoorKind : std::uint8_t { kRest, kMetrics };

/// How many connections of one kind are open, at most.
class ConnectionCount {
 public:
  explicit ConnectionCount(std::uint32_t limit) : limit_(limit) {}
  /// False, and nothing is counted, at the limit.
  [[nodiscard]] bool enter() {
    if (open_.fetch_add(1) < limit_) return true;
    open_.fetch_sub(1);
    return false;
  }
  void leave() { open_.fetch_sub(1); }
  [[nodiscard]] std::uint32_t open() const { return open_.load(); }

 private:
  const std::uint32_t limit_;
  std::atomic<std::uint32_t> open_{0};
};

/// One connection's place in a count that it has entered, and which outlives it.
class ConnectionSlot {
 public:
  explicit ConnectionSlot(ConnectionCount& entered) : count_(&entered) {}
  ~ConnectionSlot() { release(); }
  ConnectionSlot(ConnectionSlot&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
  ConnectionSlot& operator=(ConnectionSlot&&) = delete;
  void release() {
    if (count_ != nullptr) std::exchange(count_, nullptr)->leave();
  }

 private:
  ConnectionCount* count_;
};

struct HttpShared {
  HttpShared(const HttpOptions& server_options, GenerateService& generate_service);

  /// Unlike all others of this process and of other runs: 16 hexadecimal digits.
  [[nodiscard]] std::string new_id();
  [[nodiscard]] ConnectionCount& connections(DoorKind door) {
    return door == DoorKind::kRest ? rest_connections : metrics_connections;
  }

  const HttpOptions options;
  GenerateService& service;
  const CorsPolicy cors;
  TlsContexts tls;
  SteadyClock clock;
  std::atomic<std::uint32_t> live_requests{0};
  std::uint64_t id_base = 0;  // random at start
  std::atomic<std::uint64_t> ids_made{0};

  /// Of all bodies that are being read or wait for a work thread, whether their clients are still
  /// there or not: the bound of the work threads' queue.
  ByteBudget body_bytes;

  ConnectionCount rest_connections;
  ConnectionCount metrics_connections;  // of their own, so that a full door can
                                        // still be watched
  std::mutex sessions_mutex;
  std::set<std::shared_ptr<HttpSession>> sessions;  // open ones; each leaves when it closes

  boost::asio::thread_pool work;  // parsing and tokenising; last, so that it ends first
};

}  // namespace kvasir::server
