// The words for CancelCause that operators see: in metrics, in the pool's status and in the log.
#pragma once

#include "core/step_plan.h"

#include <array>
#include <cstddef>
#include <string_view>

namespace kvasir::server {

/// In the order of CancelCause.
inline constexpr std::array<std::string_view, 6> kCancelCauses = {
    "stop_string", "client_gone", "grpc_cancel", "deadline", "slow_client", "drain"};
static_assert(static_cast<std::size_t>(CancelCause::kStopString) == 0 &&
              static_cast<std::size_t>(CancelCause::kClientGone) == 1 &&
              static_cast<std::size_t>(CancelCause::kGrpcCancel) == 2 &&
              static_cast<std::size_t>(CancelCause::kDeadline) == 3 &&
              static_cast<std::size_t>(CancelCause::kSlowClient) == 4 &&
              static_cast<std::size_t>(CancelCause::kDrain) == 5);

[[nodiscard]] constexpr std::string_view cancel_cause_name(CancelCause cause) {
  return kCancelCauses.at(static_cast<std::size_t>(cause));
}

}  // namespace kvasir::server
