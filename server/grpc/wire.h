// Messages to gRPC's byte buffers and back, and errors to statuses. The service's methods are raw,
// because gRPC's callback API answers UNIMPLEMENTED to a message that does not parse, and that is
// INVALID_ARGUMENT.
#pragma once

#include "core/result.h"

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <exception>

namespace kvasir::server {

/// Errors: kInvalidValue when there is no message, it is damaged, holds ill-formed UTF-8 in a
/// string field, or has more than kMaxFields fields at its top level (2 bytes of wire can cost 50
/// bytes of memory).
[[nodiscard]] Result<void> parse_message(const grpc::ByteBuffer& buffer,
                                         google::protobuf::Message& message);
inline constexpr int kMaxFields = 200'000;

[[nodiscard]] grpc::ByteBuffer serialize_message(const google::protobuf::Message& message);

/// With a google.rpc.Status in the details: ErrorInfo always, BadRequest when a field is at fault,
/// RetryInfo when trying again makes sense (with the table's time, or `retry_after_seconds` if that
/// is longer). What went wrong inside of us is not the client's: the message of kInternal is the
/// same for all.
[[nodiscard]] grpc::Status status_of(const Error& error, std::uint32_t retry_after_seconds = 0);

/// kInternal, with a line in the log.
[[nodiscard]] Error logged_error(const std::exception& failure);

/// What the function returns, or kInternal if it throws: no exception crosses a thread.
template <typename Function>
[[nodiscard]] auto guarded(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception& failure) {
    return tl::unexpected<Error>(logged_error(failure));
  }
}

}  // namespace kvasir::server
