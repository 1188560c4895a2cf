// The REST routes for documents: what each is for and what it may answer. Which path is answered
// how is server/http's; a test holds the two to each other.
#pragma once

#include "core/result.h"
#include "server/field_table.h"

#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace kvasir::server {

struct ApiRoute {
  std::string_view path;       // "/v1/models/{id}"
  std::string_view operation;  // a name for it, "createCompletion"
  std::string_view purpose;    // one sentence
  bool needs_key = false;      // where the operator asks for keys
  std::optional<FieldUsers> request =
      {};                              // of a POST: whose fields its body has; else GET and HEAD
  std::string_view answer = {};        // name of the answer's schema; empty: no JSON
  std::vector<ErrorCode> errors = {};  // beside those of the framing, which any request may get
  bool streams = false;                // answers events too, when asked to
};

[[nodiscard]] std::span<const ApiRoute> api_routes();
/// What any request may be answered because of how it is sent.
[[nodiscard]] std::span<const ErrorCode> framing_errors();

}  // namespace kvasir::server
