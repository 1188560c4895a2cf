// The log line that every request leaves at its end, the same facts in the same words at both
// doors. No text of a client is in it but what the door has checked.
#pragma once

#include "core/clock.h"
#include "server/generation.h"

#include <string_view>

namespace kvasir::server {

struct RequestEnd {
  std::string_view status;  // in the words of the door's protocol
  TimePoint began{};
  TimePoint ended{};
  Usage usage;               // zeros where nothing was generated
  std::string_view outcome;  // "stop", "length", an error's code, "client_gone", ...; may be empty
};

/// The outcome of a choice that ended by itself.
[[nodiscard]] std::string_view outcome_name(FinishReason reason);

/// `request` says what was asked: "http request id=... method=... route=...".
void log_request(std::string_view request, const RequestEnd& end);

}  // namespace kvasir::server
