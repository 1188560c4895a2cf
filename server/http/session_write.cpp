// Of a connection's work, the writing of answers and the end of requests and of the connection.
#include "server/error_map.h"
#include "server/http/session.h"
#include "server/request_log.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

namespace kvasir::server {
namespace {

/// A client must take so much within each write timeout, or the rest of what is there.
constexpr std::size_t kMinWriteProgressBytes = 16U << 10U;

/// Assigning an empty string would keep the memory of the old one.
void release(std::string& text) { std::string().swap(text); }

}  // namespace

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
          .is_head = reader_.head().method == "HEAD",
          .cors_fields = current_.cors_fields};
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
  transport_.write(std::string_view(writing_).substr(written_bytes_),
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
  release(writing_);
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
  release(inbox_);
  transport_.shut_send();
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
  release(inbox_);
  release(outbox_);
  release(writing_);
  read_deadline_.disarm();
  write_deadline_.disarm();
  ping_.disarm();
  transport_.close();
  slot_.release();
  const std::lock_guard lock(shared_.sessions_mutex);
  shared_.sessions.erase(shared_from_this());
}

}  // namespace kvasir::server
