#include "server/http/response.h"

#include "server/error_map.h"
#include "server/http/openai_answer.h"
#include "server/wall_time.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace kvasir::server {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr int kNoContent = 204;  // has no body, nor the fields of one

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Internal Server Error";
  }
}

std::string head(int status, std::string_view content_type, const ResponseContext& context,
                 bool closes) {
  std::string text = "HTTP/1.1 " + std::to_string(status) + " ";
  text += reason_phrase(status);
  text += "\r\nDate: " + http_date(unix_seconds());
  if (status != kNoContent) {
    text += "\r\nContent-Type: ";
    text += content_type;
  }
  text += "\r\nx-request-id: " + context.request_id;
  text += "\r\nopenai-processing-ms: " + std::to_string(context.processing_ms) + "\r\n";
  if (closes) {
    text += "Connection: close\r\n";
  } else if (context.is_http_1_0) {
    text += "Connection: keep-alive\r\n";
  }
  return text + context.cors_fields;
}

}  // namespace

Response error_response(const Error& error, std::uint32_t retry_after_seconds) {
  const ErrorMapping& mapping = error_mapping(error.code);
  Response response;
  response.status = mapping.http_status;
  response.body = error_body(error);
  response.outcome = mapping.code;
  if (mapping.retryable()) {
    const std::uint32_t seconds = std::max(retry_after_seconds, mapping.retry_after_seconds);
    response.extra_fields = "Retry-After: " + std::to_string(seconds) + "\r\n";
  } else if (error.code != ErrorCode::kRequestTimeout) {
    response.extra_fields = "x-should-retry: false\r\n";
  }
  if (mapping.http_status == 401) response.extra_fields += "WWW-Authenticate: Bearer\r\n";
  return response;
}

std::string response_bytes(const Response& response, const ResponseContext& context) {
  std::string text =
      head(response.status, response.content_type, context, response.closes || !context.keep_alive);
  text += response.extra_fields;
  if (response.status != kNoContent)
    text += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
  text += kLineEnd;
  if (!context.is_head) text += response.body;
  return text;
}

std::string stream_head(const ResponseContext& context) {
  std::string text = head(200, "text/event-stream; charset=utf-8", context,
                          !context.keep_alive || context.is_http_1_0);
  text += "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
  if (!context.is_http_1_0) text += "Transfer-Encoding: chunked\r\n";
  text += kLineEnd;
  return text;
}

std::string stream_chunk(std::string_view data, bool is_http_1_0) {
  if (is_http_1_0 || data.empty()) return std::string(data);  // an empty chunk would end the body
  std::array<char, 16> digits{};
  const auto size = std::to_chars(digits.data(), digits.data() + digits.size(), data.size(), 16);
  std::string text(digits.data(), size.ptr);
  text += kLineEnd;
  text += data;
  text += kLineEnd;
  return text;
}

std::string_view stream_end(bool is_http_1_0) { return is_http_1_0 ? "" : "0\r\n\r\n"; }

}  // namespace kvasir::server
