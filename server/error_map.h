// ErrorCode to HTTP status, OpenAI type and code, and gRPC status number: one table for both doors.
// How an answer shows them is the doors'.
#pragma once

#include "core/result.h"
#include "core/step_plan.h"

#include <cstdint>
#include <string_view>

namespace kvasir::server {

struct ErrorMapping {
  int http_status = 500;
  std::string_view type;  // "invalid_request_error", ...
  std::string_view code;  // "context_length_exceeded", ...
  int grpc_status = 13;   // grpc::StatusCode as a number
  /// What Retry-After and RetryInfo say at least (429 and 503); 0: another try is of no use.
  std::uint32_t retry_after_seconds = 0;

  [[nodiscard]] constexpr bool retryable() const { return retry_after_seconds > 0; }
};

[[nodiscard]] const ErrorMapping& error_mapping(ErrorCode code);
/// As gRPC spells its codes, by number.
[[nodiscard]] std::string_view grpc_status_name(int status);
/// The longest that a client is asked to wait; the engine's estimate keeps it too.
inline constexpr std::uint32_t kMaxRetryAfterSeconds = 60;
/// What Retry-After and RetryInfo say where a place is free in about `estimate_seconds`: the
/// table's time or, of a full queue and of a server that drains,
/// the estimate if that is longer. 0 where another try is of no use.
[[nodiscard]] std::uint32_t retry_after_seconds(ErrorCode code, std::uint32_t estimate_seconds);
/// Why the other choices of an answer end when one of them failed with `code`.
[[nodiscard]] CancelCause cancel_cause_of(ErrorCode code);

}  // namespace kvasir::server
