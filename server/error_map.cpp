#include "server/error_map.h"

#include "core/check.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace kvasir::server {
namespace {

// grpc::StatusCode by number, so that this table needs no gRPC.
constexpr int kGrpcCancelled = 1;
constexpr int kGrpcInvalidArgument = 3;
constexpr int kGrpcDeadlineExceeded = 4;
constexpr int kGrpcNotFound = 5;
constexpr int kGrpcResourceExhausted = 8;
constexpr int kGrpcUnimplemented = 12;
constexpr int kGrpcInternal = 13;
constexpr int kGrpcUnavailable = 14;
constexpr int kGrpcUnauthenticated = 16;

constexpr std::string_view kInvalidRequest = "invalid_request_error";
constexpr std::string_view kRateLimit = "rate_limit_error";
constexpr std::string_view kUnavailable = "service_unavailable_error";
constexpr std::string_view kServerError = "server_error";

// A queue moves within a second; loading and draining take longer.
constexpr std::uint32_t kQueueSeconds = 1;
constexpr std::uint32_t kRestartSeconds = 5;

constexpr ErrorMapping invalid_argument(std::string_view code) {
  return {400, kInvalidRequest, code, kGrpcInvalidArgument, 0};
}
constexpr ErrorMapping unavailable(std::string_view code) {
  return {503, kUnavailable, code, kGrpcUnavailable, kRestartSeconds};
}

ErrorMapping map(ErrorCode code) {
  switch (code) {  // no default: the compiler names a code that is missing here
    case ErrorCode::kInvalidJson:
      return invalid_argument("invalid_json");
    case ErrorCode::kJsonTooDeep:
      return invalid_argument("json_too_deep");
    case ErrorCode::kInvalidType:
      return invalid_argument("invalid_type");
    case ErrorCode::kInvalidValue:
      return invalid_argument("invalid_value");
    case ErrorCode::kMissingParameter:
      return invalid_argument("missing_required_parameter");
    case ErrorCode::kUnsupportedParameter:
      return invalid_argument("unsupported_parameter");
    case ErrorCode::kUnsupportedContent:
      return invalid_argument("unsupported_content");
    case ErrorCode::kInvalidTemplateInput:
      return invalid_argument("invalid_template_input");
    case ErrorCode::kContextLengthExceeded:
      return invalid_argument("context_length_exceeded");
    case ErrorCode::kInvalidApiKey:
      return {401, kInvalidRequest, "invalid_api_key", kGrpcUnauthenticated, 0};
    case ErrorCode::kModelNotFound:
      return {404, kInvalidRequest, "model_not_found", kGrpcNotFound, 0};
    case ErrorCode::kUnknownUrl:
      return {404, kInvalidRequest, "unknown_url", kGrpcUnimplemented, 0};
    case ErrorCode::kMethodNotSupported:
      return {405, kInvalidRequest, "method_not_supported", kGrpcUnimplemented, 0};
    case ErrorCode::kRequestTimeout:
      return {408, kInvalidRequest, "request_timeout", kGrpcDeadlineExceeded, 0};
    case ErrorCode::kLengthRequired:
      return {411, kInvalidRequest, "length_required", kGrpcInvalidArgument, 0};
    case ErrorCode::kBodyTooLarge:
      return {413, kInvalidRequest, "body_too_large", kGrpcResourceExhausted, 0};
    case ErrorCode::kUriTooLong:
      return {414, kInvalidRequest, "uri_too_long", kGrpcInvalidArgument, 0};
    case ErrorCode::kUnsupportedMediaType:
      return {415, kInvalidRequest, "unsupported_media_type", kGrpcInvalidArgument, 0};
    case ErrorCode::kExpectationFailed:
      return {417, kInvalidRequest, "expectation_failed", kGrpcInvalidArgument, 0};
    case ErrorCode::kHeadersTooLarge:
      return {431, kInvalidRequest, "headers_too_large", kGrpcResourceExhausted, 0};
    case ErrorCode::kUnsupportedTransferCoding:
      return {501, kInvalidRequest, "unsupported_transfer_coding", kGrpcUnimplemented, 0};
    case ErrorCode::kHttpVersionNotSupported:
      return {505, kInvalidRequest, "http_version_not_supported", kGrpcUnimplemented, 0};
    case ErrorCode::kDeadlineExceeded:
      return {408, kInvalidRequest, "deadline_exceeded", kGrpcDeadlineExceeded, 0};
    case ErrorCode::kQueueFull:
      return {429, kRateLimit, "queue_full", kGrpcResourceExhausted, kQueueSeconds};
    case ErrorCode::kModelLoading:
      return unavailable("model_loading");
    case ErrorCode::kDraining:
      return unavailable("draining");
    case ErrorCode::kEngineUnavailable:
      return unavailable("engine_unavailable");
    // Only a client that is gone or does not read is cancelled, so this status is seen in logs
    // alone.
    case ErrorCode::kCancelled:
      return {499, kInvalidRequest, "cancelled", kGrpcCancelled, 0};
    case ErrorCode::kInvalidModelFile:  // start-up failures never reach a door
    case ErrorCode::kInvalidConfig:
    case ErrorCode::kInternal:
      return {500, kServerError, "internal_error", kGrpcInternal, 0};
  }
  KVASIR_CHECK(false, "error code " << static_cast<int>(code) << " is not in the table");
}

}  // namespace

const ErrorMapping& error_mapping(ErrorCode code) {
  // One row for each code up to the last one, made once.
  static const auto table = [] {
    std::array<ErrorMapping, static_cast<std::size_t>(ErrorCode::kInternal) + 1> rows;
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = map(static_cast<ErrorCode>(i));
    return rows;
  }();
  const auto index = static_cast<std::size_t>(code);
  KVASIR_CHECK(index < table.size(), "error code " << index);
  return table[index];
}

std::string_view grpc_status_name(int status) {
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

std::uint32_t retry_after_seconds(ErrorCode code, std::uint32_t estimate_seconds) {
  const std::uint32_t usual = error_mapping(code).retry_after_seconds;
  if (code != ErrorCode::kQueueFull && code != ErrorCode::kDraining) return usual;
  return std::clamp(estimate_seconds, usual, kMaxRetryAfterSeconds);
}

CancelCause cancel_cause_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kDeadlineExceeded:
      return CancelCause::kDeadline;
    case ErrorCode::kDraining:
      return CancelCause::kDrain;
    case ErrorCode::kCancelled:  // an answer ends so by itself only when it is read too slowly
      return CancelCause::kSlowClient;
    default:
      return CancelCause::kClientGone;  // the client gets no more of it
  }
}

}  // namespace kvasir::server
