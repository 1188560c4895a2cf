#include "server/http/request_reader.h"

#include "server/http/request_framing.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>

#include <functional>
#include <string_view>
#include <utility>

namespace kvasir::server {
namespace {

namespace http = boost::beast::http;

/// A body that grows with what arrives: the length that a client announces reserves nothing.
struct GrowingBody {
  using value_type = std::string;
  static std::uint64_t size(const value_type& body) { return body.size(); }

  class reader {
   public:
    template <bool isRequest, typename Fields>
    reader(http::header<isRequest, Fields>& /*header*/, value_type& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>& /*length*/, boost::beast::error_code& ec) {
      ec = {};
    }
    template <typename Buffers>
    std::size_t put(const Buffers& buffers, boost::beast::error_code& ec) {
      ec = {};
      std::size_t added = 0;
      for (auto it = boost::asio::buffer_sequence_begin(buffers);
           it != boost::asio::buffer_sequence_end(buffers); ++it) {
        const boost::asio::const_buffer piece = *it;
        body_.append(static_cast<const char*>(piece.data()), piece.size());
        added += piece.size();
      }
      return added;
    }
    void finish(boost::beast::error_code& ec) { ec = {}; }

   private:
    value_type& body_;
  };
};

Error refusal_of(const boost::beast::error_code& ec, const WireLimits& limits) {
  if (ec == http::error::body_limit) {
    return {ErrorCode::kBodyTooLarge,
            "the body must be at most " + std::to_string(limits.max_body_bytes) + " bytes",
            {}};
  }
  if (ec == http::error::header_limit) {
    return {ErrorCode::kHeadersTooLarge, "the trailers or chunk extensions are too large", {}};
  }
  return {ErrorCode::kInvalidValue, "the HTTP request is malformed: " + ec.message(), {}};
}

Error no_room() { return {ErrorCode::kQueueFull, "too many request bodies wait to be read", {}}; }

/// The line that ends a chunk's size may carry extensions, which Beast waits for without a bound of
/// its own.
constexpr std::size_t kMaxStuckBytes = 32U << 10U;
/// What a body in chunks still has at least before its end, "0", CRLF, CRLF. Beast takes it for
/// granted (by an assertion) once it has seen the first line of that.
constexpr std::size_t kLeastChunkedBytes = 5;

/// A chunk's first line is all there and Beast waits for more: a quoted string of its extensions
/// has no end in the line. Beast would read the line anew with every byte, and count its size
/// against the body's limit each time. Only the last chunk, of size 0, has more before its end.
bool is_broken_chunk_line(std::string_view rest) {
  constexpr std::string_view kLineEnd = "\r\n";
  if (rest.starts_with(kLineEnd)) rest.remove_prefix(kLineEnd.size());
  if (rest.find(kLineEnd) == std::string_view::npos) return false;
  const std::string_view size = rest.substr(0, rest.find_first_of("; \t\r"));
  return size.find_first_not_of('0') != std::string_view::npos;
}

}  // namespace

struct RequestReader::BodyParser {
  /// Extensions mean nothing to us; all of a body's together may be as long as a header.
  explicit BodyParser(const WireLimits& limits) {
    parser.body_limit(limits.max_body_bytes);
    parser.header_limit(static_cast<std::uint32_t>(limits.max_header_bytes + 4));
    on_chunk = [this, most = limits.max_header_bytes](std::uint64_t /*size*/,
                                                      boost::beast::string_view extensions,
                                                      boost::beast::error_code& ec) {
      extension_bytes += extensions.size();
      if (extension_bytes > most) ec = http::error::header_limit;
    };
    parser.on_chunk_header(on_chunk);
  }

  http::request_parser<GrowingBody> parser;
  std::function<void(std::uint64_t, boost::beast::string_view, boost::beast::error_code&)> on_chunk;
  std::size_t extension_bytes = 0;
};

RequestReader::RequestReader(const WireLimits& limits, ByteBudget& budget)
    : limits_(limits), budget_(budget), charge_(budget) {}
RequestReader::~RequestReader() = default;

void RequestReader::reset() {
  RequestHead none;
  std::swap(head_, none);  // assigning would keep the strings' memory
  head_done_ = false;
  body_.reset();
  charge_ = ByteCharge(budget_);
}

RequestBody RequestReader::take_body() {
  return {.charge = std::move(charge_), .text = std::move(body_->parser.get().body())};
}

/// False when too many bodies wait.
bool RequestReader::charge_body() {
  return charge_.grow_to(kBodyBaseBytes + body_->parser.get().body().capacity());
}

RequestReader::Progress RequestReader::refuse(Error error) {
  refusal_ = std::move(error);
  return Progress::kRefused;
}

RequestReader::Progress RequestReader::advance(std::string& inbox) {
  return head_done_ ? advance_body(inbox) : advance_head(inbox);
}

RequestReader::Progress RequestReader::advance_head(std::string& inbox) {
  constexpr std::string_view kLineEnd = "\r\n";
  std::size_t empty_bytes = 0;  // empty lines before a request are ignored
  while (std::string_view(inbox).substr(empty_bytes).starts_with(kLineEnd))
    empty_bytes += kLineEnd.size();
  inbox.erase(0, empty_bytes);
  if (auto ok = check_unfinished_head(inbox, limits_); !ok) return refuse(std::move(ok.error()));
  const std::size_t end = inbox.find("\r\n\r\n");
  if (end == std::string::npos) return Progress::kNeedMore;
  const std::string_view block = std::string_view(inbox).substr(0, end + 4);
  auto head = read_head(block, limits_);
  if (!head) return refuse(std::move(head.error()));
  head_ = std::move(*head);

  body_ = std::make_unique<BodyParser>(limits_);
  auto& parser = body_->parser;
  boost::beast::error_code ec;
  const std::size_t used = parser.put(boost::asio::buffer(block.data(), block.size()), ec);
  if (ec) return refuse(refusal_of(ec, limits_));
  if (!parser.is_header_done()) {
    return refuse({ErrorCode::kInvalidValue, "the HTTP request is malformed", {}});
  }
  inbox.erase(0, used);
  if (head_.has_body_framing && !charge_body()) return refuse(no_room());
  head_done_ = true;
  return Progress::kHeadDone;
}

RequestReader::Progress RequestReader::advance_body(std::string& inbox) {
  auto& parser = body_->parser;
  std::size_t used = 0;
  const std::size_t least_bytes = parser.chunked() ? kLeastChunkedBytes : 1;
  while (!parser.is_done() && inbox.size() - used >= least_bytes) {
    boost::beast::error_code ec;
    const std::size_t n =
        parser.put(boost::asio::buffer(inbox.data() + used, inbox.size() - used), ec);
    used += n;
    if (ec == http::error::need_more) {
      ec = {};
      if (n == 0 && is_broken_chunk_line(std::string_view(inbox).substr(used)))
        return refuse({ErrorCode::kInvalidValue,
                       "the HTTP request is malformed: a chunk's extension does not end",
                       {}});
      if (n == 0) break;
    }
    if (ec) return refuse(refusal_of(ec, limits_));
    if (head_.has_body_framing && !charge_body()) return refuse(no_room());
  }
  inbox.erase(0, used);
  if (parser.is_done()) return Progress::kDone;
  if (inbox.size() > kMaxStuckBytes) {
    return refuse(
        {ErrorCode::kInvalidValue, "the HTTP request is malformed: an endless chunk header", {}});
  }
  return Progress::kNeedMore;
}

}  // namespace kvasir::server
