// ErrorCode to HTTP status, OpenAI type and code, and gRPC status number: one table for both doors.
#pragma once

#include "core/result.h"
#include "core/step_plan.h"

#include <optional>
#include <string_view>

namespace kvasir::server {

struct ErrorMapping {
  int http_status = 500;
  std::string_view type;   // "invalid_request_error", ...
  std::string_view code;   // "context_length_exceeded", ...
  int grpc_status = 13;    // grpc::StatusCode as a number
  bool retryable = false;  // 429 and 503: Retry-After and RetryInfo go with it
};

[[nodiscard]] const ErrorMapping& error_mapping(ErrorCode code);
/// Why the other choices of an answer end when one of them failed with `code`.
[[nodiscard]] CancelCause cancel_cause_of(ErrorCode code);

}  // namespace kvasir::server
