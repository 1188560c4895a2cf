#include "server/http/request_framing.h"

#include "server/http/header_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>

namespace kvasir::server {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::size_t kMaxMethodBytes = 32;

tl::unexpected<Error> malformed(std::string_view what) {
  return fail(ErrorCode::kInvalidValue, "the HTTP request is malformed: " + std::string(what));
}

/// Takes the next line without its end from the front of `rest`.
std::string_view next_line(std::string_view& rest) {
  const std::size_t end = rest.find(kLineEnd);
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end + kLineEnd.size());
  return line;
}

Result<void> read_request_line(std::string_view line, const WireLimits& limits, RequestHead& head) {
  const std::size_t first_space = line.find(' ');
  const std::size_t last_space = line.rfind(' ');
  if (first_space == std::string_view::npos || first_space == last_space)
    return malformed("no request line");
  const std::string_view method = line.substr(0, first_space);
  const std::string_view target = line.substr(first_space + 1, last_space - first_space - 1);
  const std::string_view version = line.substr(last_space + 1);
  if (!is_token(method) || method.size() > kMaxMethodBytes) return malformed("a bad method");
  if (target.size() > limits.max_uri_bytes) {
    return fail(ErrorCode::kUriTooLong,
                "the URI must be at most " + std::to_string(limits.max_uri_bytes) + " bytes");
  }
  const bool visible =
      std::all_of(target.begin(), target.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  if (target.empty() || !visible) return malformed("a bad request target");
  const bool is_version = version.size() == 8 && version.starts_with("HTTP/") &&
                          std::isdigit(static_cast<unsigned char>(version[5])) != 0 &&
                          version[6] == '.' &&
                          std::isdigit(static_cast<unsigned char>(version[7])) != 0;
  if (!is_version) return malformed("a bad version");
  if (method == "PRI") return malformed("HTTP/2 is not spoken on this port");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return fail(ErrorCode::kHttpVersionNotSupported,
                "the HTTP version must be 1.1 or 1.0, not " + std::string(version.substr(5)));
  }
  head.method = method;
  head.target = target;
  head.is_http_1_0 = version == "HTTP/1.0";
  return {};
}

/// The fields that decide where a request ends.
struct FramingFields {
  std::size_t hosts = 0;
  std::size_t content_lengths = 0;
  std::size_t transfer_encodings = 0;
  std::string_view content_length;
  std::string_view transfer_encoding;
  bool expects_continue = false;
  bool says_close = false;
  bool says_keep_alive = false;
};

/// The characters of a host name, an address or a port.
bool is_host(std::string_view text) {
  static constexpr std::string_view kMarks = "-._~!$&'()*+,;=%:[]";
  return std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           kMarks.find(c) != std::string_view::npos;
  });
}

Result<void> check_content_length(std::string_view text, const WireLimits& limits) {
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(),
                                                   [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return malformed("a bad Content-Length");
  std::uint64_t length = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), length);
  if (parsed.ec == std::errc::result_out_of_range || length > limits.max_body_bytes) {
    return fail(ErrorCode::kBodyTooLarge,
                "the body must be at most " + std::to_string(limits.max_body_bytes) + " bytes");
  }
  return {};
}

Result<void> check_framing(const FramingFields& fields, const WireLimits& limits,
                           RequestHead& head) {
  if (fields.hosts > 1 || (fields.hosts == 0 && !head.is_http_1_0))
    return malformed("exactly one Host field is needed");
  if (fields.content_lengths > 1) return malformed("more than one Content-Length");
  if (fields.transfer_encodings > 0) {
    if (fields.content_lengths > 0) return malformed("both Transfer-Encoding and Content-Length");
    if (head.is_http_1_0) return malformed("Transfer-Encoding in HTTP/1.0");
    if (fields.transfer_encodings > 1) return malformed("more than one Transfer-Encoding");
    if (!equal_ignoring_case(fields.transfer_encoding, "chunked")) {
      return fail(ErrorCode::kUnsupportedTransferCoding, "the Transfer-Encoding must be chunked");
    }
  }
  if (fields.content_lengths == 1) {
    if (auto ok = check_content_length(fields.content_length, limits); !ok) return ok;
  }
  head.has_body_framing = fields.content_lengths + fields.transfer_encodings > 0;
  head.expects_continue = fields.expects_continue && !head.is_http_1_0;
  head.keep_alive = !fields.says_close && (!head.is_http_1_0 || fields.says_keep_alive);
  return {};
}

Result<void> read_expectation(std::string_view value, FramingFields& framing) {
  if (!equal_ignoring_case(value, "100-continue")) {
    return fail(ErrorCode::kExpectationFailed,
                "the only expectation that can be met is 100-continue");
  }
  framing.expects_continue = true;
  return {};
}

/// Any of several such fields may say it.
void read_connection(std::string_view value, FramingFields& framing) {
  while (!value.empty()) {
    const std::size_t comma = value.find(',');
    const std::string_view option = trimmed(value.substr(0, comma));
    framing.says_close |= equal_ignoring_case(option, "close");
    framing.says_keep_alive |= equal_ignoring_case(option, "keep-alive");
    value.remove_prefix(comma == std::string_view::npos ? value.size() : comma + 1);
  }
}

/// The fields that say nothing of where the request ends.
void read_other_field(std::string_view name, std::string_view value, RequestHead& head) {
  if (equal_ignoring_case(name, "X-Request-Id")) {
    head.request_id = value;
  } else if (equal_ignoring_case(name, "Content-Type")) {
    // Two of them are one that is no media type, as are two codings.
    head.content_type.append(head.content_type.empty() ? "" : ",").append(value);
  } else if (equal_ignoring_case(name, "Content-Encoding")) {
    head.content_encoding.append(head.content_encoding.empty() ? "" : ",").append(value);
  } else if (equal_ignoring_case(name, "Authorization")) {
    ++head.num_authorizations;
    head.authorization = value;
  } else if (equal_ignoring_case(name, "Origin")) {
    head.origin = value;
  }
}

Result<void> read_field(std::string_view line, FramingFields& framing, RequestHead& head) {
  if (line.front() == ' ' || line.front() == '\t') return malformed("a folded field");
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
    return malformed("a bad field name");
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = trimmed(line.substr(colon + 1));
  const bool printable = std::all_of(value.begin(), value.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte == '\t' || (byte >= 0x20 && byte != 0x7F);
  });
  if (!printable) return malformed("a control character in a field");
  if (equal_ignoring_case(name, "Host")) {
    ++framing.hosts;
    if (!is_host(value)) return malformed("a bad Host");
  } else if (equal_ignoring_case(name, "Content-Length")) {
    ++framing.content_lengths;
    framing.content_length = value;
  } else if (equal_ignoring_case(name, "Transfer-Encoding")) {
    ++framing.transfer_encodings;
    framing.transfer_encoding = value;
  } else if (equal_ignoring_case(name, "Expect")) {
    return read_expectation(value, framing);
  } else if (equal_ignoring_case(name, "Connection")) {
    read_connection(value, framing);
  } else {
    read_other_field(name, value, head);
  }
  return {};
}

/// Some servers take it for the end of a line, and then see other fields than we do.
bool has_bare_line_feed(std::string_view text) {
  for (std::size_t at = text.find('\n'); at != std::string_view::npos;
       at = text.find('\n', at + 1)) {
    if (at == 0 || text[at - 1] != '\r') return true;
  }
  return false;
}

tl::unexpected<Error> headers_too_large(const WireLimits& limits) {
  return fail(ErrorCode::kHeadersTooLarge,
              "the header must be at most " + std::to_string(limits.max_header_bytes) + " bytes");
}

}  // namespace

Result<void> check_unfinished_head(std::string_view inbox, const WireLimits& limits) {
  if (inbox.empty()) return {};
  // A TLS hello starts with 0x16; whatever is no token character starts no method.
  if (!is_token_char(inbox.front()) && inbox.front() != '\r') return malformed("no request line");
  if (has_bare_line_feed(inbox.substr(0, inbox.find("\r\n\r\n"))))
    return malformed("a line feed without its carriage return");
  const std::size_t line_end = inbox.find(kLineEnd);
  const std::string_view line = inbox.substr(0, line_end);
  // A line that grows past the longest allowed one is refused before its end is there.
  constexpr std::string_view kVersionPart = " HTTP/1.1";
  if (line_end == std::string_view::npos &&
      line.size() > kMaxMethodBytes + 1 + limits.max_uri_bytes + kVersionPart.size()) {
    return fail(ErrorCode::kUriTooLong,
                "the URI must be at most " + std::to_string(limits.max_uri_bytes) + " bytes");
  }
  if (line_end != std::string_view::npos) {
    // Judged before the fields, so that other protocols are told at their first line.
    RequestHead unused;
    if (auto ok = read_request_line(line, limits, unused); !ok) return ok;
  }
  const std::string_view head = inbox.substr(0, inbox.find("\r\n\r\n"));
  if (head.size() > limits.max_header_bytes) return headers_too_large(limits);
  return {};
}

Result<RequestHead> read_head(std::string_view block, const WireLimits& limits) {
  RequestHead head;
  std::string_view rest = block;
  if (auto ok = read_request_line(next_line(rest), limits, head); !ok)
    return tl::unexpected<Error>(ok.error());
  FramingFields framing;
  std::size_t num_fields = 0;
  for (std::string_view line = next_line(rest); !line.empty(); line = next_line(rest)) {
    if (++num_fields > limits.max_fields) {
      return fail(ErrorCode::kHeadersTooLarge,
                  "there must be at most " + std::to_string(limits.max_fields) + " header fields");
    }
    if (auto ok = read_field(line, framing, head); !ok) return tl::unexpected<Error>(ok.error());
  }
  if (auto ok = check_framing(framing, limits, head); !ok) return tl::unexpected<Error>(ok.error());
  return head;
}

}  // namespace kvasir::server
