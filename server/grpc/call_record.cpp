#include "server/grpc/call_record.h"

#include "server/error_map.h"
#include "server/request_log.h"

namespace kvasir::server {
void set_failed(CallRecord& record, ErrorCode code) {
  const ErrorMapping& mapping = error_mapping(code);
  record.status = mapping.grpc_status;
  record.outcome = mapping.code;
}

void log_call(const CallRecord& record) {
  if (record.metrics != nullptr)
    record.metrics->count_grpc_call(record.method, grpc_status_name(record.status));
  std::string request = "grpc request id=" + record.id + " method=";
  request += record.method;
  log_request(request, {.status = grpc_status_name(record.status),
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
