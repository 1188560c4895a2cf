#include "server/grpc/call_limits.h"

#include "core/check.h"

#include <utility>

namespace kvasir::server {

CallLimits::Ticket::Ticket(std::shared_ptr<CallLimits> limits, std::string peer)
    : limits_(std::move(limits)), peer_(std::move(peer)) {}

CallLimits::Ticket::~Ticket() { limits_->leave(peer_); }

Result<std::unique_ptr<CallLimits::Ticket>> CallLimits::enter(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  if (live_ >= bounds_.in_all) {
    return fail(ErrorCode::kQueueFull,
                "the server has its limit of " + std::to_string(bounds_.in_all) + " live calls");
  }
  std::uint32_t& of_peer = live_by_peer_[peer];
  if (of_peer >= bounds_.per_connection && !peer.starts_with("unix:")) {
    return fail(ErrorCode::kQueueFull, "this connection has its limit of " +
                                           std::to_string(bounds_.per_connection) + " live calls");
  }
  ++of_peer;
  ++live_;
  return std::make_unique<Ticket>(shared_from_this(), peer);
}

std::uint32_t CallLimits::live() const {
  const std::lock_guard lock(mutex_);
  return live_;
}

void CallLimits::leave(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  const auto found = live_by_peer_.find(peer);
  KVASIR_CHECK(found != live_by_peer_.end());
  KVASIR_CHECK(live_ > 0);
  --live_;
  if (--found->second == 0) live_by_peer_.erase(found);
}

}  // namespace kvasir::server
