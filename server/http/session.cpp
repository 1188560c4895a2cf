// Of a connection's work, the beginning and the reading of requests.
#include "server/http/session.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <utility>

namespace kvasir::server {
namespace {

/// What a client may send ahead while its request is in flight.
constexpr std::size_t kMaxPipelinedBytes = 64U << 10U;
/// What is read and dropped of a refused request, so that the refusal is not lost to a reset.
constexpr std::size_t kMaxLingeredBytes = 16U << 20U;

bool is_request_id(std::string_view text) {
  static constexpr std::string_view kMarks = "._:-";
  return !text.empty() && text.size() <= 128 && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           kMarks.find(c) != std::string_view::npos;
  });
}

/// Methods by name; what a client made up is one word.
std::string_view known_method(std::string_view method) {
  constexpr std::array<std::string_view, 7> kMethods = {"GET",    "HEAD",    "POST", "PUT",
                                                        "DELETE", "OPTIONS", "PATCH"};
  const auto* found = std::find(kMethods.begin(), kMethods.end(), method);
  return found == kMethods.end() ? std::string_view("OTHER") : *found;
}

}  // namespace

HttpSession::HttpSession(Transport::Socket socket, std::shared_ptr<SSL_CTX> tls, DoorKind door,
                         ConnectionSlot slot, HttpShared& shared)
    : transport_(std::move(socket), std::move(tls)),
      door_(door),
      slot_(std::move(slot)),
      shared_(shared),
      reader_({.max_header_bytes = shared.options.max_header_bytes,
               .max_uri_bytes = shared.options.max_uri_bytes,
               .max_fields = shared.options.max_header_fields,
               .max_body_bytes = shared.options.max_body_bytes},
              shared.body_bytes),
      read_deadline_(transport_.executor()),
      write_deadline_(transport_.executor()),
      ping_(transport_.executor()) {}

void HttpSession::start() {
  guarded([this] { join(); });
}

void HttpSession::join() {
  {
    const std::lock_guard lock(shared_.sessions_mutex);
    shared_.sessions.insert(shared_from_this());
  }
  // A new connection has the header's time for its first request, the handshake included.
  header_timer_runs_ = true;
  read_deadline_.arm(shared_.options.header_timeout, handler(&HttpSession::on_read_timeout));
  if (!transport_.is_tls()) return read();
  phase_ = Phase::kHandshaking;
  transport_.handshake(handler(&HttpSession::on_handshake));
}

void HttpSession::on_handshake(const boost::system::error_code& ec) {
  if (phase_ != Phase::kHandshaking) return;
  if (ec) return close();
  phase_ = Phase::kReading;
  read();
}

void HttpSession::read() {
  if (reading_ || phase_ == Phase::kClosed) return;
  reading_ = true;
  transport_.read(handler(&HttpSession::on_read));
}

void HttpSession::on_read(const boost::system::error_code& ec, std::string_view bytes) {
  reading_ = false;
  switch (phase_) {
    case Phase::kReading:
      if (ec) return abort(CancelCause::kClientGone, "client_gone");
      inbox_.append(bytes);
      return process();
    case Phase::kWorking:
      if (ec) return abort(CancelCause::kClientGone, "client_gone");
      keep_ahead(bytes);
      return read();
    case Phase::kWriting:
      if (ec) {
        current_.closes = true;  // the answer is on its way all the same
        return;
      }
      keep_ahead(bytes);
      return read();
    case Phase::kLingering:
      lingered_bytes_ += bytes.size();
      if (ec || lingered_bytes_ > kMaxLingeredBytes) return close();
      return read();
    case Phase::kHandshaking:
    case Phase::kClosed:
      return;
  }
}

/// What a client sends past the bound is dropped, and so is what may come after it: nothing more
/// can be understood, but the client's end is still seen.
void HttpSession::keep_ahead(std::string_view bytes) {
  if (inbox_.size() + bytes.size() > kMaxPipelinedBytes) current_.closes = true;
  if (!current_.closes) inbox_.append(bytes);
}

void HttpSession::process() {
  while (true) {
    switch (reader_.advance(inbox_)) {
      case RequestReader::Progress::kNeedMore:
        if (reader_.head_done()) return on_body_wanted();
        if (!inbox_.empty() && !std::exchange(header_timer_runs_, true)) {
          read_deadline_.arm(shared_.options.header_timeout,
                             handler(&HttpSession::on_read_timeout));
        }
        return read();
      case RequestReader::Progress::kHeadDone:
        begin_request();
        read_deadline_.arm(shared_.options.body_timeout, handler(&HttpSession::on_read_timeout));
        if (!current_.gate.answer && reader_.head().expects_continue && inbox_.empty())
          send("HTTP/1.1 100 Continue\r\n\r\n");
        break;
      case RequestReader::Progress::kDone:
        return dispatch();
      case RequestReader::Progress::kRefused:
        return refuse(reader_.refusal());
    }
  }
}

/// Where the head has decided already, nobody waits for a body: the connection ends instead.
void HttpSession::on_body_wanted() {
  if (!current_.gate.answer) return read();
  Response response = std::move(*current_.gate.answer);
  response.closes = true;
  respond(std::move(response));
}

void HttpSession::begin_request() {
  current_ = {};
  current_.active = true;
  current_.began = shared_.clock.now();
  const RequestHead& head = reader_.head();
  current_.id = is_request_id(head.request_id) ? head.request_id : "req-" + shared_.new_id();
  current_.method = head.method.empty() ? std::string_view("-") : known_method(head.method);
  current_.closes = !head.keep_alive;
  current_.cors_fields = shared_.cors.answer_fields(head.origin);
  shared_.live_requests.fetch_add(1);
  if (!reader_.head_done()) return;
  current_.gate = judge_head(head, door_, shared_);
  if (current_.gate.match) current_.route = current_.gate.match->route.path_template;
}

/// Between two requests: waits for the next one, or goes on with what is there of it.
void HttpSession::expect_request() {
  reader_.reset();
  generation_.reset();
  stream_.reset();
  whole_.reset();
  stream_head_sent_ = false;
  phase_ = Phase::kReading;
  header_timer_runs_ = false;
  // Most of the time between two requests nothing is there: it should cost nothing.
  if (inbox_.empty()) std::string().swap(inbox_);
  read_deadline_.arm(shared_.options.idle_timeout, handler(&HttpSession::on_read_timeout));
  process();
}

void HttpSession::on_read_timeout() {
  if (phase_ == Phase::kLingering || phase_ == Phase::kHandshaking) return close();
  if (phase_ != Phase::kReading) return;
  const bool has_request_line = reader_.head_done() || inbox_.find("\r\n") != std::string::npos;
  if (!has_request_line) return close();
  refuse({ErrorCode::kRequestTimeout, "the request did not arrive in time", {}});
}

}  // namespace kvasir::server
