// One HTTP answer as bytes: status line, the fields that every answer has, and the body.
#pragma once

#include "core/result.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir::server {

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::string extra_fields;  // whole lines, each with its "\r\n"
  bool closes = false;       // the connection ends with it
  std::string_view outcome;  // for the log: an error's code, else empty
};

/// What an answer takes from its request.
struct ResponseContext {
  std::string request_id;
  std::int64_t processing_ms = 0;
  bool is_http_1_0 = false;
  bool keep_alive = true;
  bool is_head = false;          // the same fields, no body
  std::string cors_fields = {};  // whole lines (cors.h)
};

/// With the error body and the fields that belong to its status (Retry-After, x-should-retry).
/// Retry-After, where the status has it, is the table's or `retry_after_seconds` if that is longer.
[[nodiscard]] Response error_response(const Error& error, std::uint32_t retry_after_seconds = 0);
[[nodiscard]] std::string response_bytes(const Response& response, const ResponseContext& context);
/// The head of an event stream; its body follows in chunks (HTTP/1.1) or up to the close
/// (HTTP/1.0).
[[nodiscard]] std::string stream_head(const ResponseContext& context);
/// `data` as one chunk, as the stream's protocol version frames it.
[[nodiscard]] std::string stream_chunk(std::string_view data, bool is_http_1_0);
[[nodiscard]] std::string_view stream_end(bool is_http_1_0);

}  // namespace kvasir::server
