// What is known of a request from its head alone: where it goes, whether it may, and whose it is.
// Whoever is refused here is answered without a look at the body. Framing is the reader's, what the
// body says is the post handler's.
#pragma once

#include "server/http/http_shared.h"
#include "server/http/request_reader.h"
#include "server/http/response.h"
#include "server/http/routes.h"

#include <cstdint>
#include <optional>

namespace kvasir::server {

struct GateVerdict {
  std::optional<RouteMatch> match;  // absent: nothing is at the request's path
  std::optional<Response> answer;   // it ends here: a refusal, or what OPTIONS asked for
  std::uint64_t tenant = 0;         // of its API key; 0 without keys
};

/// In this order: path, method, key, the fields that describe the body.
[[nodiscard]] GateVerdict judge_head(const RequestHead& head, DoorKind door,
                                     const HttpShared& shared);

}  // namespace kvasir::server
