#include "server/http/session.h"

#include "core/rng.h"
#include "server/error_map.h"
#include "server/http/routes.h"
#include "server/request_log.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <exception>
#include <type_traits>
#include <utility>

namespace kvasir::server {
namespace {

namespace asio = boost::asio;

/// What a client may send ahead while its request is in flight.
constexpr std::size_t kMaxPipelinedBytes = 64U << 10U;
/// What is read and dropped of a refused request, so that the refusal is not lost to a reset.
constexpr std::size_t kMaxLingeredBytes = 16U << 20U;
/// A client must take so much within each write timeout, or the rest of what is there.
constexpr std::size_t kMinWriteProgressBytes = 16U << 10U;
/// Whole answers from this size on are put together by a work thread: some ms of work, during which
/// other streams would stand still.
constexpr std::size_t kLargeAnswerBytes = 256U << 10U;

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

bool is_json_type(std::string_view content_type) {
  std::string type(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.pop_back();
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return type.empty() || type == "application/json";
}

/// Never throws: it runs on a thread that answers to nobody.
Response whole_response(const WholeAnswer& answer, const Generation& generation) {
  try {
    return {.body = answer.body(generation), .extra_fields = {}, .outcome = {}};
  } catch (const std::exception& failure) {  // memory at its end
    spdlog::error("an answer could not be put together: {}", failure.what());
    return error_response({ErrorCode::kInternal, failure.what(), {}});
  }
}

}  // namespace

std::string HttpShared::new_id() {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::uint64_t bits = mix64(id_base ^ ids_made.fetch_add(1));
  std::string id(16, '0');
  for (char& digit : id) {
    digit = kHexDigits[bits & 0xFU];
    bits >>= 4U;
  }
  return id;
}

void Deadline::arm(std::chrono::milliseconds after, std::function<void()> expired) {
  timer_.expires_after(after);
  timer_.async_wait([version = version_, armed = ++*version_,
                     expired = std::move(expired)](const boost::system::error_code& ec) {
    if (!ec && *version == armed) expired();
  });
}

void Deadline::disarm() {
  ++*version_;
  timer_.cancel();
}

HttpSession::HttpSession(asio::ip::tcp::socket socket, HttpShared& shared)
    : socket_(std::move(socket)),
      shared_(shared),
      reader_({.max_header_bytes = shared.options.max_header_bytes,
               .max_uri_bytes = shared.options.max_uri_bytes,
               .max_body_bytes = shared.options.max_body_bytes},
              shared.body_bytes),
      read_deadline_(socket_.get_executor()),
      write_deadline_(socket_.get_executor()),
      ping_(socket_.get_executor()) {}

template <typename Function>
void HttpSession::guarded(const Function& function) {
  try {
    function();
  } catch (const std::exception& failure) {
    on_failure(failure);
  }
}

template <typename... Arguments>
auto HttpSession::handler(void (HttpSession::*member)(Arguments...)) {
  return [self = shared_from_this(), member](const std::decay_t<Arguments>&... arguments) {
    self->guarded([&] { ((*self).*member)(arguments...); });
  };
}

void HttpSession::start() {
  guarded([this] { join(); });
}

void HttpSession::join() {
  {
    const std::lock_guard lock(shared_.sessions_mutex);
    shared_.sessions.insert(shared_from_this());
  }
  boost::system::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  header_timer_runs_ = true;  // a new connection has the header's time for its first request
  read_deadline_.arm(shared_.options.header_timeout, handler(&HttpSession::on_read_timeout));
  read();
}

// ---- reading ----

void HttpSession::read() {
  if (reading_ || phase_ == Phase::kClosed) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(read_buffer_), handler(&HttpSession::on_read));
}

void HttpSession::on_read(const boost::system::error_code& ec, std::size_t bytes) {
  reading_ = false;
  switch (phase_) {
    case Phase::kReading:
      if (ec) return abort(CancelCause::kClientGone, "client_gone");
      inbox_.append(read_buffer_.data(), bytes);
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
      lingered_bytes_ += bytes;
      if (ec || lingered_bytes_ > kMaxLingeredBytes) return close();
      return read();
    case Phase::kClosed:
      return;
  }
}

/// What a client sends past the bound is dropped, and so is what may come after it: nothing more
/// can be understood, but the client's end is still seen.
void HttpSession::keep_ahead(std::size_t bytes) {
  if (inbox_.size() + bytes > kMaxPipelinedBytes) current_.closes = true;
  if (!current_.closes) inbox_.append(read_buffer_.data(), bytes);
}

void HttpSession::process() {
  while (true) {
    switch (reader_.advance(inbox_)) {
      case RequestReader::Progress::kNeedMore:
        if (!reader_.head_done() && !inbox_.empty() && !std::exchange(header_timer_runs_, true)) {
          read_deadline_.arm(shared_.options.header_timeout,
                             handler(&HttpSession::on_read_timeout));
        }
        return read();
      case RequestReader::Progress::kHeadDone:
        begin_request();
        read_deadline_.arm(shared_.options.body_timeout, handler(&HttpSession::on_read_timeout));
        if (reader_.head().expects_continue && inbox_.empty())
          send("HTTP/1.1 100 Continue\r\n\r\n");
        break;
      case RequestReader::Progress::kDone:
        return dispatch();
      case RequestReader::Progress::kRefused:
        return refuse(reader_.refusal());
    }
  }
}

void HttpSession::begin_request() {
  current_ = {};
  current_.active = true;
  current_.began = shared_.clock.now();
  const RequestHead& head = reader_.head();
  current_.id = is_request_id(head.request_id) ? head.request_id : "req-" + shared_.new_id();
  current_.method = head.method.empty() ? std::string_view("-") : known_method(head.method);
  current_.closes = !head.keep_alive;
  shared_.live_requests.fetch_add(1);
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
  read_deadline_.arm(shared_.options.idle_timeout, handler(&HttpSession::on_read_timeout));
  process();
}

void HttpSession::on_read_timeout() {
  if (phase_ == Phase::kLingering) return close();
  if (phase_ != Phase::kReading) return;
  const bool has_request_line = reader_.head_done() || inbox_.find("\r\n") != std::string::npos;
  if (!has_request_line) return close();
  refuse({ErrorCode::kRequestTimeout, "the request did not arrive in time", {}});
}

// ---- answering ----

void HttpSession::dispatch() {
  read_deadline_.disarm();
  phase_ = Phase::kWorking;
  read();
  const RequestHead& head = reader_.head();
  const Result<RouteMatch> match = match_route(head.target);
  if (!match) return respond(error_response(match.error()));
  current_.route = match->route.path_template;
  const bool allowed =
      match->route.is_post ? head.method == "POST" : head.method == "GET" || head.method == "HEAD";
  if (!allowed) {
    const std::string_view allow = match->route.is_post ? "POST" : "GET, HEAD";
    Response response = error_response(
        {ErrorCode::kMethodNotSupported, "the method must be one of: " + std::string(allow), {}});
    response.extra_fields += "Allow: " + std::string(allow) + "\r\n";
    return respond(std::move(response));
  }
  if (match->route.is_post) return dispatch_post(*match);
  respond(answer_get(*match, shared_.service, shared_.options, shared_.num_sessions.load()));
}

void HttpSession::dispatch_post(const RouteMatch& match) {
  const RequestHead& head = reader_.head();
  if (!head.has_body_framing) {
    return respond(error_response(
        {ErrorCode::kLengthRequired, "a body with its Content-Length is needed", {}}));
  }
  if (!is_json_type(head.content_type)) {
    return respond(error_response(
        {ErrorCode::kUnsupportedMediaType, "the Content-Type must be application/json", {}}));
  }
  if (!head.content_encoding.empty() && head.content_encoding != "identity") {
    return respond(error_response(
        {ErrorCode::kUnsupportedMediaType, "the Content-Encoding must be identity", {}}));
  }
  WakeFunction wake = [weak = weak_from_this(), executor = socket_.get_executor()] {
    asio::post(executor, [weak] {
      if (const auto self = weak.lock()) self->guarded([&self] { self->pump(); });
    });
  };
  // shared_ptr: a handler must be copyable for some executors; a request and an outcome are not.
  auto request = std::make_shared<PostRequest>(PostRequest{.route = match.route.id,
                                                           .body = reader_.take_body(),
                                                           .answer_id = shared_.new_id(),
                                                           .arrival = current_.began,
                                                           .gone = &gone_});
  asio::post(shared_.work, [self = shared_from_this(), request = std::move(request),
                            wake = std::move(wake)]() mutable {
    if (self->gone_.load()) return;  // its client left while it waited
    auto outcome = std::make_shared<PostOutcome>(
        handle_post(*request, self->shared_.service, std::move(wake)));
    request.reset();
    const auto executor = self->socket_.get_executor();
    asio::post(executor, [self = std::move(self), outcome = std::move(outcome)] {
      self->guarded([&] { self->on_outcome(std::move(*outcome)); });
    });
  });
}

void HttpSession::on_outcome(PostOutcome outcome) {
  if (phase_ != Phase::kWorking)
    return;  // the client left meanwhile; a generation ends with its last owner
  if (auto* response = std::get_if<Response>(&outcome)) return respond(std::move(*response));
  auto& started = std::get<StartedAnswer>(outcome);
  generation_ = std::move(started.generation);
  if (started.stream) {
    stream_.emplace(std::move(started.shape), generation_->num_choices());
    arm_ping();
  } else {
    whole_.emplace(std::move(started.shape), generation_->num_choices());
  }
  pump();
}

/// Sends what became ready. While a write is in flight nothing is polled: the queue of the
/// generation is the bound for a client that reads slowly.
void HttpSession::pump() {
  if (phase_ != Phase::kWorking || !generation_ || write_in_flight_) return;
  std::vector<ChoiceDelta> deltas = generation_->poll();
  for (const ChoiceDelta& delta : deltas) {
    if (delta.error) return fail_answer(*delta.error);
    if (delta.finish) current_.outcome = outcome_name(*delta.finish);
  }
  if (stream_) {
    pump_stream(std::move(deltas));
  } else {
    pump_whole(std::move(deltas));
  }
}

void HttpSession::pump_stream(std::vector<ChoiceDelta> deltas) {
  std::string events = stream_->events(deltas, *generation_);
  const bool done = generation_->done();
  if (done) events += stream_->end(generation_->usage());
  if (events.empty()) return;
  if (done) {
    ping_.disarm();
    current_.usage = generation_->usage();
    phase_ = Phase::kWriting;
  } else {
    arm_ping();
  }
  send_event_bytes(events);
}

void HttpSession::pump_whole(std::vector<ChoiceDelta> deltas) {
  whole_->add(std::move(deltas));
  if (!generation_->done()) return;
  current_.usage = generation_->usage();
  if (whole_->estimated_bytes(*generation_) >= kLargeAnswerBytes) return build_whole();
  respond({.body = whole_->body(*generation_), .extra_fields = {}, .outcome = {}});
}

/// The finished answer goes to a work thread, and comes back as its bytes.
void HttpSession::build_whole() {
  std::shared_ptr<const Generation> generation = std::move(generation_);
  auto answer = std::make_shared<const WholeAnswer>(std::move(*whole_));
  whole_.reset();
  asio::post(shared_.work, [self = shared_from_this(), answer = std::move(answer),
                            generation = std::move(generation)]() mutable {
    if (self->gone_.load()) return;
    auto response = std::make_shared<Response>(whole_response(*answer, *generation));
    answer.reset();
    generation.reset();
    const auto executor = self->socket_.get_executor();
    asio::post(executor, [self = std::move(self), response = std::move(response)] {
      if (self->phase_ != Phase::kWorking) return;
      self->guarded([&] { self->respond(std::move(*response)); });
    });
  });
}

/// An error before the first byte of a stream keeps its status; after it, it is the stream's last
/// event.
void HttpSession::fail_answer(const Error& error) {
  ping_.disarm();
  current_.usage = generation_->usage();
  generation_->cancel(cancel_cause_of(error.code));  // ends the other choices
  generation_.reset();
  if (!stream_ || !stream_head_sent_) return respond(error_response(error));
  current_.outcome = error_mapping(error.code).code;
  current_.closes = true;
  phase_ = Phase::kWriting;
  send_event_bytes(error_event(error));
}

void HttpSession::send_event_bytes(const std::string& events) {
  const bool is_http_1_0 = reader_.head().is_http_1_0;
  std::string bytes;
  if (!std::exchange(stream_head_sent_, true)) {
    current_.status = 200;
    if (is_http_1_0 || shared_.service.readiness() == Readiness::kDraining) current_.closes = true;
    bytes = stream_head(response_context());
  }
  bytes += stream_chunk(events, is_http_1_0);
  if (phase_ == Phase::kWriting) bytes += stream_end(is_http_1_0);
  send(std::move(bytes));
}

/// A stream that is silent for long says so, with its status before its first event if need be.
void HttpSession::arm_ping() {
  ping_.arm(shared_.options.ping_interval, handler(&HttpSession::on_ping));
}

void HttpSession::on_ping() {
  if (phase_ != Phase::kWorking || !stream_) return;
  if (!write_in_flight_) send_event_bytes(": ping\n\n");
  arm_ping();
}

// ---- writing ----

/// The request could not be read: what follows in the connection means nothing.
void HttpSession::refuse(const Error& error) {
  if (!current_.active) begin_request();
  Response response = error_response(error);
  response.closes = true;
  respond(std::move(response));
}

void HttpSession::respond(Response response) {
  read_deadline_.disarm();
  ping_.disarm();
  if (response.closes || shared_.service.readiness() == Readiness::kDraining)
    current_.closes = true;
  current_.status = response.status;
  if (!response.outcome.empty()) current_.outcome = response.outcome;
  phase_ = Phase::kWriting;
  send(response_bytes(response, response_context()));
}

ResponseContext HttpSession::response_context() const {
  const auto elapsed = shared_.clock.now() - current_.began;
  return {.request_id = current_.id,
          .processing_ms = std::chrono::duration_cast<std::chrono::milliseconds>(elapsed).count(),
          .is_http_1_0 = reader_.head().is_http_1_0,
          .keep_alive = !current_.closes,
          .is_head = reader_.head().method == "HEAD"};
}

void HttpSession::send(std::string bytes) {
  if (outbox_.empty()) {
    outbox_ = std::move(bytes);
  } else {
    outbox_ += bytes;
  }
  if (!write_in_flight_) write();
}

void HttpSession::write() {
  writing_ = std::exchange(outbox_, {});
  written_bytes_ = 0;
  write_in_flight_ = true;
  arm_write_deadline();
  write_some();
}

void HttpSession::write_some() {
  socket_.async_write_some(asio::buffer(writing_) + written_bytes_,
                           handler(&HttpSession::on_written));
}

void HttpSession::arm_write_deadline() {
  deadline_armed_bytes_ = written_bytes_;
  write_deadline_.arm(shared_.options.write_timeout, handler(&HttpSession::on_write_timeout));
}

void HttpSession::on_write_timeout() { abort(CancelCause::kSlowClient, "slow_client"); }

void HttpSession::on_written(const boost::system::error_code& ec, std::size_t bytes) {
  written_bytes_ += bytes;
  if (!ec && phase_ != Phase::kClosed && written_bytes_ < writing_.size()) {
    if (written_bytes_ - deadline_armed_bytes_ >= kMinWriteProgressBytes) arm_write_deadline();
    return write_some();
  }
  write_in_flight_ = false;
  write_deadline_.disarm();
  if (phase_ == Phase::kClosed) return;
  if (ec) return abort(CancelCause::kClientGone, "client_gone");
  if (!outbox_.empty()) return write();
  if (phase_ == Phase::kWriting) return finish_request();
  pump();
}

// ---- ending ----

void HttpSession::finish_request() {
  record_request();
  if (current_.closes) return linger();
  expect_request();
}

/// The one log line and the count of a request. No text of a client is in it but its checked id.
void HttpSession::record_request() {
  if (!std::exchange(current_.active, false)) return;
  shared_.live_requests.fetch_sub(1);
  shared_.service.metrics().count_http_request(current_.route, current_.method, current_.status);
  std::string request = "http request id=" + current_.id + " method=";
  request.append(current_.method).append(" route=").append(current_.route);
  log_request(request, {.status = std::to_string(current_.status),
                        .began = current_.began,
                        .ended = shared_.clock.now(),
                        .usage = current_.usage,
                        .outcome = current_.outcome});
}

/// Shuts our side and waits for the client's end, so that unread bytes of its request do not turn
/// the close into a reset that would take our answer with it.
void HttpSession::linger() {
  phase_ = Phase::kLingering;
  inbox_.clear();
  boost::system::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  read_deadline_.arm(shared_.options.linger_timeout, handler(&HttpSession::on_read_timeout));
  read();
}

/// Half a handler ran: nothing that the session would do next can be trusted.
void HttpSession::on_failure(const std::exception& failure) {
  spdlog::error("an HTTP connection failed: {}", failure.what());
  const ErrorMapping& mapping = error_mapping(ErrorCode::kInternal);
  if (current_.status == 0) current_.status = mapping.http_status;
  abort(CancelCause::kClientGone, mapping.code);
}

void HttpSession::abort(CancelCause cause, std::string_view outcome) {
  if (phase_ == Phase::kClosed) return;
  if (generation_) {
    generation_->cancel(cause);
    current_.usage = generation_->usage();
  }
  current_.outcome = outcome;
  close();
}

void HttpSession::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  gone_.store(true);
  if (current_.status == 0) current_.status = error_mapping(ErrorCode::kCancelled).http_status;
  record_request();
  // A task of the work threads may keep this object for a while, but not what it holds.
  generation_.reset();
  stream_.reset();
  whole_.reset();
  reader_.reset();
  inbox_ = std::string();
  outbox_ = std::string();
  read_deadline_.disarm();
  write_deadline_.disarm();
  ping_.disarm();
  boost::system::error_code ignored;
  socket_.close(ignored);
  const std::lock_guard lock(shared_.sessions_mutex);
  if (shared_.sessions.erase(shared_from_this()) > 0) shared_.num_sessions.fetch_sub(1);
}

}  // namespace kvasir::server
