// What the log and the metrics say of one call: gathered while it runs, written once at its end. It
// takes no part in the call itself.
#pragma once

#include "core/clock.h"
#include "core/result.h"
#include "server/generation.h"
#include "server/metrics.h"

#include <string>
#include <string_view>

namespace kvasir::server {

struct CallRecord {
  std::string_view method;     // "Complete", "Health/Check", ...: ours, never the client's word
  Metrics* metrics = nullptr;  // where it is counted
  std::string id = "-";        // of the answer, where there is one
  TimePoint began = SteadyClock().now();
  int status = 0;              // grpc::StatusCode as a number
  std::string_view outcome{};  // "stop", "length" or an error's code; empty for other good ends
  Usage usage{};
};

/// The call ends with this error.
void set_failed(CallRecord& record, ErrorCode code);
/// The line and the count; the call ends now.
void log_call(const CallRecord& record);
/// Both, for a call that ends as soon as it came.
void log_call(CallRecord record, const Result<void>& result);

}  // namespace kvasir::server
