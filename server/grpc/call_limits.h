// Counts the live calls of the gRPC door, in all and per connection. A stream that the client reset
// is no longer open for HTTP/2's own limit but still here until its reactor is done, so a flood of
// resets meets this limit. Connections over a Unix socket have no name to tell them apart, so only
// the limit of all calls holds for them.
#pragma once

#include "core/result.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace kvasir::server {

struct CallBounds {
  std::uint32_t per_connection = 100;
  std::uint32_t in_all = 1024;
};

/// Thread-safe. Held by shared_ptr, because a ticket may outlive the server object that gave it.
class CallLimits : public std::enable_shared_from_this<CallLimits> {
 public:
  explicit CallLimits(const CallBounds& bounds) : bounds_(bounds) {}

  /// Counts a call until it is destroyed.
  class Ticket {
   public:
    Ticket(std::shared_ptr<CallLimits> limits, std::string peer);
    ~Ticket();
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

   private:
    std::shared_ptr<CallLimits> limits_;
    std::string peer_;
  };

  /// `peer` names the connection, port included. Errors: kQueueFull.
  [[nodiscard]] Result<std::unique_ptr<Ticket>> enter(const std::string& peer);
  [[nodiscard]] std::uint32_t live() const;

 private:
  void leave(const std::string& peer);

  const CallBounds bounds_;
  mutable std::mutex mutex_;
  std::uint32_t live_ = 0;
  std::map<std::string, std::uint32_t> live_by_peer_;
};

}  // namespace kvasir::server
