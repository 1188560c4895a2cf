#include "server/error_map.h"

#include "server/shown_value.h"
#include "tests/support/catch.h"

#include <string>

using namespace kvasir;
using namespace kvasir::server;

TEST_CASE("error_mapping: every code has a status, a type and a code", "[server]") {
  for (int i = 0; i <= static_cast<int>(ErrorCode::kInternal); ++i) {
    const ErrorMapping& mapping = error_mapping(static_cast<ErrorCode>(i));
    INFO(i);
    CHECK(mapping.http_status >= 400);
    CHECK(mapping.http_status < 600);
    CHECK(mapping.grpc_status > 0);
    CHECK(mapping.grpc_status <= 16);
    CHECK(!mapping.type.empty());
    CHECK(!mapping.code.empty());
    // Only these two are worth another try, and only they carry a time for it.
    CHECK(mapping.retryable() == (mapping.http_status == 429 || mapping.http_status == 503));
  }
}

TEST_CASE("error_mapping: both doors give one verdict", "[server]") {
  const auto check = [](ErrorCode code, int http, int grpc, std::string_view name) {
    const ErrorMapping& mapping = error_mapping(code);
    CHECK(mapping.http_status == http);
    CHECK(mapping.grpc_status == grpc);
    CHECK(mapping.code == name);
  };
  check(ErrorCode::kInvalidValue, 400, 3, "invalid_value");
  check(ErrorCode::kContextLengthExceeded, 400, 3, "context_length_exceeded");
  check(ErrorCode::kModelNotFound, 404, 5, "model_not_found");
  check(ErrorCode::kDeadlineExceeded, 408, 4, "deadline_exceeded");
  check(ErrorCode::kQueueFull, 429, 8, "queue_full");
  check(ErrorCode::kDraining, 503, 14, "draining");
  check(ErrorCode::kInternal, 500, 13, "internal_error");
}

TEST_CASE("retry_after_seconds: the estimate counts where a place is waited for", "[server]") {
  CHECK(retry_after_seconds(ErrorCode::kQueueFull, 0) == 1);
  CHECK(retry_after_seconds(ErrorCode::kQueueFull, 1) == 1);
  CHECK(retry_after_seconds(ErrorCode::kQueueFull, 37) == 37);
  CHECK(retry_after_seconds(ErrorCode::kQueueFull, 100'000) == 60);
  CHECK(retry_after_seconds(ErrorCode::kDraining, 1) == 5);
  CHECK(retry_after_seconds(ErrorCode::kDraining, 37) == 37);
  CHECK(retry_after_seconds(ErrorCode::kModelLoading, 37) == 5);
  CHECK(retry_after_seconds(ErrorCode::kEngineUnavailable, 37) == 5);
  CHECK(retry_after_seconds(ErrorCode::kInvalidValue, 37) == 0);
}

TEST_CASE("grpc_status_name: as gRPC spells its numbers", "[server]") {
  CHECK(grpc_status_name(0) == "OK");
  CHECK(grpc_status_name(3) == "INVALID_ARGUMENT");
  CHECK(grpc_status_name(8) == "RESOURCE_EXHAUSTED");
  CHECK(grpc_status_name(14) == "UNAVAILABLE");
  CHECK(grpc_status_name(16) == "UNAUTHENTICATED");
}

TEST_CASE("cancel_cause_of: the siblings of a failed choice count its cause", "[server]") {
  CHECK(cancel_cause_of(ErrorCode::kDeadlineExceeded) == CancelCause::kDeadline);
  CHECK(cancel_cause_of(ErrorCode::kDraining) == CancelCause::kDrain);
  CHECK(cancel_cause_of(ErrorCode::kCancelled) == CancelCause::kSlowClient);
  CHECK(cancel_cause_of(ErrorCode::kInternal) == CancelCause::kClientGone);
}

TEST_CASE("shown_value: cuts to 64 bytes on a character and hides control characters", "[server]") {
  CHECK(shown_value("a\r\n\x1b[2J") == "\"a???[2J\"");
  const std::string shown = shown_value(std::string(63, 'a') + "\xE6\xBC\xA2");
  CHECK(shown == "\"" + std::string(63, 'a') + "...\"");
  // U+0085, U+009B, U+202E, U+2067; their neighbours stay.
  CHECK(shown_value("a\xC2\x85\xC2\x9B\xE2\x80\xAE\xE2\x81\xA7z") == "\"a????z\"");
  CHECK(shown_value("\xC2\xA0\xE2\x80\xAF\xE2\x81\xAA") == "\"\xC2\xA0\xE2\x80\xAF\xE2\x81\xAA\"");
  CHECK(shown_value(2.1) == "2.1");
}
