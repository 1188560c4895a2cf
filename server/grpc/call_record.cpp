#include "server/grpc/call_record.h"

#include "core/check.h"
#include "server/error_map.h"
#include "server/request_log.h"

#include <array>
#include <cstddef>

namespace kvasir::server {
namespace {

/// As gRPC spells its codes, by number.
std::string_view status_name(int status) {
  constexpr std::array<std::string_view, 17> kNames = {"OK",
                                                       "CANCELLED",
                                                       "UNKNOWN",
                                                       "INVALID_ARGUMENT",
                                                       "DEADLINE_EXCEEDED",
                                                       "NOT_FOUND",
                                                       "ALREADY_EXISTS",
                                                       "PERMISSION_DENIED",
                                                       "RESOURCE_EXHAUSTED",
                                                       "FAILED_PRECONDITION",
                                                       "ABORTED",
                                                       "OUT_OF_RANGE",
                                                       "UNIMPLEMENTED",
                                                       "INTERNAL",
                                                       "UNAVAILABLE",
                                                       "DATA_LOSS",
                                                       "UNAUTHENTICATED"};
  const auto index = static_cast<std::size_t>(status);
  KVASIR_CHECK(index < kNames.size(), "gRPC status " << status);
  return kNames[index];
}

}  // namespace

void set_failed(CallRecord& record, ErrorCode code) {
  const ErrorMapping& mapping = error_mapping(code);
  record.status = mapping.grpc_status;
  record.outcome = mapping.code;
}

void log_call(const CallRecord& record) {
  if (record.metrics != nullptr)
    record.metrics->count_grpc_call(record.method, status_name(record.status));
  std::string request = "grpc request id=" + record.id + " method=";
  request += record.method;
  log_request(request, {.status = status_name(record.status),
                        .began = record.began,
                        .ended = SteadyClock().now(),
                        .usage = record.usage,
                        .outcome = record.outcome});
}

void log_call(CallRecord record, const Result<void>& result) {
  if (!result) set_failed(record, result.error().code);
  log_call(record);
}

}  // namespace kvasir::server
