// Of a connection's work, the answering of requests: by a route, a generation's events or an error.
#include "server/error_map.h"
#include "server/http/session.h"
#include "server/request_log.h"

#include <boost/asio/post.hpp>
#include <spdlog/spdlog.h>

#include <exception>
#include <utility>

namespace kvasir::server {
namespace {

namespace asio = boost::asio;

/// Whole answers from this size on are put together by a work thread: some ms of work, during which
/// other streams would stand still.
constexpr std::size_t kLargeAnswerBytes = 256U << 10U;

/// Never throws: it runs on a thread that answers to nobody.
Response whole_response(const WholeAnswer& answer, const Generation& generation) {
  try {
    return {.body = answer.body(generation), .extra_fields = {}, .outcome = {}};
  } catch (const std::exception& failure) {  // memory at its end
    spdlog::error("an answer could not be put together: {}", failure.what());
    return error_response({ErrorCode::kInternal, failure.what(), {}});
  }
}

/// Never throws, for the same reason.
Result<std::string> stream_events(StreamAnswer& answer, const std::vector<ChoiceDelta>& deltas,
                                  const Generation& generation) {
  try {
    return answer.events(deltas, generation);
  } catch (const std::exception& failure) {
    spdlog::error("events could not be put together: {}", failure.what());
    return fail(ErrorCode::kInternal, failure.what());
  }
}

}  // namespace

void HttpSession::dispatch() {
  read_deadline_.disarm();
  phase_ = Phase::kWorking;
  read();
  if (current_.gate.answer) return respond(std::move(*current_.gate.answer));
  const RouteMatch& match = *current_.gate.match;
  if (match.route.is_post) return dispatch_post(match);
  respond(answer_get(match, shared_.service, shared_.options, shared_.rest_connections.open()));
}

void HttpSession::dispatch_post(const RouteMatch& match) {
  WakeFunction wake = [weak = weak_from_this(), executor = executor()] {
    asio::post(executor, [weak] {
      if (const auto self = weak.lock()) self->guarded([&self] { self->pump(); });
    });
  };
  // shared_ptr: a handler must be copyable for some executors; a request and an outcome are not.
  auto request = std::make_shared<PostRequest>(PostRequest{.route = match.route.id,
                                                           .body = reader_.take_body(),
                                                           .answer_id = shared_.new_id(),
                                                           .arrival = current_.began,
                                                           .tenant = current_.gate.tenant,
                                                           .gone = &gone_});
  asio::post(shared_.work, [self = shared_from_this(), request = std::move(request),
                            wake = std::move(wake)]() mutable {
    if (self->gone_.load()) return;  // its client left while it waited
    auto outcome = std::make_shared<PostOutcome>(
        handle_post(*request, self->shared_.service, std::move(wake)));
    request.reset();
    const auto executor = self->executor();
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
    stream_ = std::make_shared<StreamAnswer>(std::move(started.shape), generation_->num_choices());
    arm_ping();
  } else {
    whole_.emplace(std::move(started.shape), generation_->num_choices());
  }
  pump();
}

/// Sends what became ready. While a write is in flight nothing is polled: the queue of the
/// generation is the bound for a client that reads slowly.
void HttpSession::pump() {
  if (phase_ != Phase::kWorking || !generation_ || write_in_flight_ || building_) return;
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
  const bool done = generation_->done();
  if (stream_->estimated_bytes(deltas, *generation_) >= kLargeAnswerBytes)
    return build_events(std::move(deltas), done);
  send_events(stream_->events(deltas, *generation_), done);
}

/// Events of a long prompt's logprobs are put together by a work thread, during which nothing is
/// polled: the generation and the answer stand still for it.
void HttpSession::build_events(std::vector<ChoiceDelta> deltas, bool done) {
  building_ = true;
  auto shared = std::make_shared<const std::vector<ChoiceDelta>>(std::move(deltas));
  asio::post(shared_.work, [self = shared_from_this(), deltas = std::move(shared), answer = stream_,
                            generation = generation_, done]() mutable {
    if (self->gone_.load()) return;
    auto events =
        std::make_shared<Result<std::string>>(stream_events(*answer, *deltas, *generation));
    deltas.reset();
    answer.reset();
    generation.reset();
    const auto executor = self->executor();
    asio::post(executor, [self = std::move(self), events = std::move(events), done] {
      self->building_ = false;
      if (self->phase_ != Phase::kWorking) return;
      self->guarded([&] {
        if (!*events) return self->fail_answer(events->error());
        self->send_events(**events, done);
        self->pump();  // what became ready meanwhile, where nothing was sent
      });
    });
  });
}

void HttpSession::send_events(std::string events, bool done) {
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
    const auto executor = self->executor();
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
  if (!stream_ || !stream_head_sent_)
    return respond(error_response(error, shared_.service.retry_after_seconds(error)));
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
  if (!write_in_flight_ && !building_) send_event_bytes(": ping\n\n");
  arm_ping();
}

}  // namespace kvasir::server
