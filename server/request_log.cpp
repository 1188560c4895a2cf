#include "server/request_log.h"

#include <spdlog/spdlog.h>

#include <chrono>

namespace kvasir::server {

std::string_view outcome_name(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : "length";
}

void log_request(std::string_view request, const RequestEnd& end) {
  const auto elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(end.ended - end.began);
  spdlog::info(
      "{} status={} ms={} prompt_tokens={} cached_tokens={} completion_tokens={} outcome={}",
      request, end.status, elapsed.count(), end.usage.prompt_tokens, end.usage.cached_tokens,
      end.usage.completion_tokens, end.outcome.empty() ? std::string_view("-") : end.outcome);
}

}  // namespace kvasir::server
