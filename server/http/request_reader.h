// One HTTP/1.1 request out of the bytes of a connection: strict framing and limits, so that no two
// readers of the same bytes can disagree on where a request ends. It owns no socket and no clock;
// Boost.Beast stays in the .cpp.
#pragma once

#include "core/result.h"
#include "server/http/byte_budget.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace kvasir::server {

struct WireLimits {
  std::size_t max_header_bytes = 16U << 10U;  // request line and fields
  std::size_t max_uri_bytes = 8U << 10U;
  std::size_t max_fields = 100;
  std::uint64_t max_body_bytes = 8ULL << 20U;
};

/// What the door needs of a request line and its fields.
struct RequestHead {
  std::string method;  // as sent: "GET", "POST", ...
  std::string target;  // as sent
  bool is_http_1_0 = false;
  bool keep_alive = true;
  bool has_body_framing = false;  // Content-Length or Transfer-Encoding
  bool expects_continue = false;
  std::string request_id;     // x-request-id as sent, whatever it is
  std::string authorization;  // of the last of so many fields of this name
  std::uint32_t num_authorizations = 0;
  std::string origin;            // as sent; empty when absent
  std::string content_type;      // as sent; empty when absent
  std::string content_encoding;  // as sent; empty when absent
};

/// A whole body and its share of the bytes that may wait.
struct RequestBody {
  ByteCharge charge;
  std::string text;
};

class RequestReader {
 public:
  /// What a body costs beside its bytes: the session that waits with it.
  static constexpr std::uint64_t kBodyBaseBytes = 32U << 10U;

  enum class Progress {
    kNeedMore,  // all bytes were looked at; more are needed
    kHeadDone,  // head() is there, once; advance again for the body
    kDone,      // the body is whole; what follows in the inbox is the next request
    kRefused,   // refusal() says why; nothing after it can be trusted, so the
                // connection ends
  };

  /// Bodies are charged to `budget`, which must outlive the reader and all bodies.
  RequestReader(const WireLimits& limits, ByteBudget& budget);
  ~RequestReader();
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  /// Takes what it understands from the front of `inbox`. After kDone or kRefused: call reset()
  /// first.
  Progress advance(std::string& inbox);
  void reset();

  [[nodiscard]] const RequestHead& head() const { return head_; }
  [[nodiscard]] bool head_done() const { return head_done_; }
  [[nodiscard]] RequestBody take_body();
  [[nodiscard]] const Error& refusal() const { return refusal_; }

 private:
  struct BodyParser;

  Progress advance_head(std::string& inbox);
  Progress advance_body(std::string& inbox);
  Progress refuse(Error error);
  [[nodiscard]] bool charge_body();

  WireLimits limits_;
  ByteBudget& budget_;
  ByteCharge charge_;
  RequestHead head_;
  bool head_done_ = false;
  std::unique_ptr<BodyParser> body_;
  Error refusal_;
};

}  // namespace kvasir::server
