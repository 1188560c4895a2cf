#include "server/grpc/generate_call.h"

#include "server/request_log.h"

#include <algorithm>
#include <chrono>

namespace kvasir::server {
namespace {

/// A deadline further off than this is left to gRPC alone, which ends the call at it.
constexpr std::chrono::hours kLongestTimeout{24};

/// A client whose deadline passes resets the call by its own clock, a moment before the deadline
/// that arrived here with the request.
constexpr std::chrono::milliseconds kDeadlineSlack{100};

CancelCause cause_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kDeadlineExceeded:
      return CancelCause::kDeadline;
    case ErrorCode::kDraining:
      return CancelCause::kDrain;
    default:
      return CancelCause::kGrpcCancel;
  }
}

}  // namespace

GenerateCall::GenerateCall(grpc::CallbackServerContext& context,
                           std::shared_ptr<CallWorkers> workers, Admission admission,
                           CallRecord record)
    : context_(context),
      deadline_(context.deadline()),
      workers_(std::move(workers)),
      tenant_(admission.tenant),
      write_timeout_(admission.write_timeout),
      service_(*admission.service),
      ticket_(std::move(admission.ticket)),
      record_(std::move(record)) {}

void GenerateCall::begin(StartFunction start) {
  self_ = shared_from_this();
  watch_ = std::make_shared<SendWatch>(context_, write_timeout_, [weak = weak_from_this()] {
    if (const std::shared_ptr<GenerateCall> call = weak.lock()) call->on_stalled();
  });
  workers_->prepare.post([self = self_, start = std::move(start)] { self->prepare(start); });
}

void GenerateCall::prepare(const StartFunction& start) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    if (deadline_ <= std::chrono::system_clock::now()) {
      preparing_ = false;
      fail_call(cancelled_error(), CancelCause::kDeadline);
      return;
    }
  }
  CallStart call{.remaining_ms = remaining_ms(),
                 .context = {.arrival = record_.began,
                             .gone = &gone_,
                             .gone_cause = CancelCause::kGrpcCancel,
                             .tenant = tenant_,
                             .keeps_answer = false},
                 .wake = [weak = weak_from_this()] {  // may outlive the call: the engine's thread
                   if (const std::shared_ptr<GenerateCall> self = weak.lock()) self->post_pump();
                 }};
  Result<std::shared_ptr<Generation>> generation = guarded([&] { return start(std::move(call)); });
  const std::lock_guard lock(mutex_);
  preparing_ = false;
  if (finished_) {  // the client left meanwhile
    if (generation) (*generation)->cancel(cancelled_cause());
    return;
  }
  if (!generation) {
    fail_call(generation.error(), CancelCause::kGrpcCancel);
    return;
  }
  generation_ = std::move(*generation);
  post_pump();
}

void GenerateCall::post_pump() {
  workers_->pump.post([self = shared_from_this()] { self->pump(); });
}

void GenerateCall::pump() {
  const std::lock_guard lock(mutex_);
  if (finished_ || writing_ || generation_ == nullptr) return;
  const Result<void> pumped = guarded([this]() -> Result<void> {
    pump_once();
    return {};
  });
  if (!pumped && !finished_) fail_call(pumped.error(), CancelCause::kGrpcCancel);
}

/// Delivers what is ready, or ends the call. The lock is held, and no write is in flight.
void GenerateCall::pump_once() {
  if (cancelled_) {
    fail_call(cancelled_error(), cancelled_cause());
    return;
  }
  std::vector<ChoiceDelta> deltas = generation_->poll();
  const auto failed = std::find_if(deltas.begin(), deltas.end(), [](const ChoiceDelta& delta) {
    return delta.error.has_value();
  });
  if (failed != deltas.end()) {
    fail_call(*failed->error, cause_of(failed->error->code));
    return;
  }
  for (const ChoiceDelta& delta : deltas) {
    if (delta.finish) record_.outcome = outcome_name(*delta.finish);
  }
  if (!deltas.empty() && deliver(std::move(deltas), *generation_)) {
    writing_ = true;
    watch_->started();
    return;
  }
  if (generation_->done()) {
    ticket_.reset();
    record_.usage = generation_->usage();
    finish_complete(*generation_);
    finished_ = true;
    generation_.reset();
    watch_->started();
  }
}

void GenerateCall::on_written(bool ok) {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  watch_->ended();
  if (!ok) {
    cancelled_ = true;
    gone_.store(true);
  }
  post_pump();
}

void GenerateCall::on_cancelled() {
  gone_.store(true);
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (finished_) return;
  // The blocks come home now; the status waits for a write in flight, which fails at once.
  if (generation_ != nullptr) generation_->cancel(cancelled_cause());
  if (!writing_) fail_call(cancelled_error(), cancelled_cause());
}

void GenerateCall::on_stalled() {
  const std::lock_guard lock(mutex_);
  if (generation_ != nullptr) generation_->cancel(CancelCause::kSlowClient);
}

void GenerateCall::release() {
  watch_->call_done();
  {
    const std::lock_guard lock(mutex_);
    log_call(record_);
  }
  const std::shared_ptr<GenerateCall> last = std::move(self_);
}

/// Ends the call; what still runs of its generation is cancelled. The lock is held.
void GenerateCall::fail_call(const Error& error, CancelCause cause) {
  finished_ = true;
  if (generation_ != nullptr) {
    generation_->cancel(cause);
    record_.usage = generation_->usage();
  }
  set_failed(record_, error.code);
  generation_.reset();
  if (!preparing_) ticket_.reset();
  finish_failed(status_of(error, service_.retry_after_seconds(error)));
  watch_->started();
}

bool GenerateCall::deadline_passed() const {
  return deadline_ <= std::chrono::system_clock::now() + kDeadlineSlack;
}

std::optional<std::int64_t> GenerateCall::remaining_ms() const {
  const auto now = std::chrono::system_clock::now();
  if (deadline_ > now + kLongestTimeout) return std::nullopt;
  const auto remaining = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - now);
  return std::max<std::int64_t>(remaining.count(), 1);
}

Error GenerateCall::cancelled_error() const {
  if (deadline_passed()) return {ErrorCode::kDeadlineExceeded, "the call's deadline passed", ""};
  return {ErrorCode::kCancelled, "the call was cancelled", ""};
}

CancelCause GenerateCall::cancelled_cause() const {
  return deadline_passed() ? CancelCause::kDeadline : CancelCause::kGrpcCancel;
}

}  // namespace kvasir::server
