#include "server/grpc/wire.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/error_map.h"
#include "server/grpc/struct_json.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace kvasir::server {
namespace {

/// Counts top-level fields, and the bytes of Structs among them, without building anything. False
/// for more than kMaxFields or kMaxStructBytes, or damaged wire.
bool is_small_enough(grpc::ByteBuffer& buffer, const google::protobuf::Descriptor& type) {
  using google::protobuf::internal::WireFormatLite;
  grpc::ProtoBufferReader reader(&buffer);
  google::protobuf::io::CodedInputStream input(&reader);
  int fields = 0;
  std::size_t struct_bytes = 0;  // of all that are given: they are merged to one
  while (const std::uint32_t tag = input.ReadTag()) {
    const int begin = input.CurrentPosition();
    if (++fields > kMaxFields || !WireFormatLite::SkipField(&input, tag)) return false;
    const auto* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (field == nullptr || field->message_type() != google::protobuf::Struct::descriptor())
      continue;
    struct_bytes += static_cast<std::size_t>(input.CurrentPosition() - begin);
    if (struct_bytes > kMaxStructBytes) return false;
  }
  return input.ConsumedEntireMessage();
}

}  // namespace

Result<void> parse_message(const grpc::ByteBuffer& buffer, google::protobuf::Message& message) {
  if (!buffer.Valid()) return fail(ErrorCode::kInvalidValue, "the call carries no message");
  const std::string name = message.GetDescriptor()->full_name();
  grpc::ByteBuffer for_count(buffer);  // shares the bytes
  if (!is_small_enough(for_count, *message.GetDescriptor())) {
    return fail(ErrorCode::kInvalidValue, "the message is no valid " + name + " of at most " +
                                              std::to_string(kMaxFields) + " fields and " +
                                              std::to_string(kMaxStructBytes) +
                                              " bytes of google.protobuf.Struct");
  }
  grpc::ByteBuffer for_parse(buffer);
  grpc::ProtoBufferReader reader(&for_parse);
  if (!message.ParseFromZeroCopyStream(&reader)) {
    return fail(ErrorCode::kInvalidValue,
                "the message is no valid " + name + " (damaged, or text that is not UTF-8)");
  }
  return {};
}

grpc::ByteBuffer serialize_message(const google::protobuf::Message& message) {
  const grpc::Slice bytes(message.SerializeAsString());
  return {&bytes, 1};
}

Error logged_error(const std::exception& failure) {
  spdlog::error("a call failed: {}", failure.what());
  return {ErrorCode::kInternal, failure.what(), {}};
}

grpc::Status status_of(const Error& error, std::uint32_t retry_after_seconds) {
  const ErrorMapping& mapping = error_mapping(error.code);
  const std::string message = error.code == ErrorCode::kInternal ? "internal error" : error.message;
  google::rpc::Status details;
  details.set_code(mapping.grpc_status);
  details.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(mapping.code));
  info.set_domain("kvasir");
  details.add_details()->PackFrom(info);
  if (!error.param.empty()) {
    google::rpc::BadRequest bad_request;
    google::rpc::BadRequest::FieldViolation* violation = bad_request.add_field_violations();
    violation->set_field(error.param);
    violation->set_description(message);
    details.add_details()->PackFrom(bad_request);
  }
  if (mapping.retryable()) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(
        std::max(retry_after_seconds, mapping.retry_after_seconds));
    details.add_details()->PackFrom(retry);
  }
  return {static_cast<grpc::StatusCode>(mapping.grpc_status), message, details.SerializeAsString()};
}

}  // namespace kvasir::server
