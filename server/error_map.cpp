#include "server/error_map.h"

#include "core/check.h"

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

constexpr ErrorMapping invalid_argument(std::string_view code) {
  return {400, kInvalidRequest, code, kGrpcInvalidArgument, false};
}
constexpr ErrorMapping unavailable(std::string_view code) {
  return {503, kUnavailable, code, kGrpcUnavailable, true};
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
      return {401, kInvalidRequest, "invalid_api_key", kGrpcUnauthenticated, false};
    case ErrorCode::kModelNotFound:
      return {404, kInvalidRequest, "model_not_found", kGrpcNotFound, false};
    case ErrorCode::kUnknownUrl:
      return {404, kInvalidRequest, "unknown_url", kGrpcUnimplemented, false};
    case ErrorCode::kMethodNotSupported:
      return {405, kInvalidRequest, "method_not_supported", kGrpcUnimplemented, false};
    case ErrorCode::kRequestTimeout:
      return {408, kInvalidRequest, "request_timeout", kGrpcDeadlineExceeded, false};
    case ErrorCode::kLengthRequired:
      return {411, kInvalidRequest, "length_required", kGrpcInvalidArgument, false};
    case ErrorCode::kBodyTooLarge:
      return {413, kInvalidRequest, "body_too_large", kGrpcResourceExhausted, false};
    case ErrorCode::kUriTooLong:
      return {414, kInvalidRequest, "uri_too_long", kGrpcInvalidArgument, false};
    case ErrorCode::kUnsupportedMediaType:
      return {415, kInvalidRequest, "unsupported_media_type", kGrpcInvalidArgument, false};
    case ErrorCode::kExpectationFailed:
      return {417, kInvalidRequest, "expectation_failed", kGrpcInvalidArgument, false};
    case ErrorCode::kHeadersTooLarge:
      return {431, kInvalidRequest, "headers_too_large", kGrpcResourceExhausted, false};
    case ErrorCode::kUnsupportedTransferCoding:
      return {501, kInvalidRequest, "unsupported_transfer_coding", kGrpcUnimplemented, false};
    case ErrorCode::kHttpVersionNotSupported:
      return {505, kInvalidRequest, "http_version_not_supported", kGrpcUnimplemented, false};
    case ErrorCode::kDeadlineExceeded:
      return {408, kInvalidRequest, "deadline_exceeded", kGrpcDeadlineExceeded, false};
    case ErrorCode::kQueueFull:
      return {429, kRateLimit, "queue_full", kGrpcResourceExhausted, true};
    case ErrorCode::kModelLoading:
      return unavailable("model_loading");
    case ErrorCode::kDraining:
      return unavailable("draining");
    case ErrorCode::kEngineUnavailable:
      return unavailable("engine_unavailable");
    // Only a client that is gone or does not read is cancelled, so this status is seen in logs
    // alone.
    case ErrorCode::kCancelled:
      return {499, kInvalidRequest, "cancelled", kGrpcCancelled, false};
    case ErrorCode::kInvalidModelFile:  // start-up failures never reach a door
    case ErrorCode::kInvalidConfig:
    case ErrorCode::kInternal:
      return {500, kServerError, "internal_error", kGrpcInternal, false};
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
