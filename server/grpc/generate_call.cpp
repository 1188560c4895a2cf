#include "server/grpc/generate_call.h"

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
                           std::shared_ptr<CallWorkers> workers,
                           std::unique_ptr<CallLimits::Ticket> ticket)
    : context_(context),
      deadline_(context.deadline()),
      workers_(std::move(workers)),
      ticket_(std::move(ticket)) {}

void GenerateCall::begin(StartFunction start) {
  self_ = shared_from_this();
  workers_->prepare.post([self = self_, start = std::move(start)] { self->prepare(start); });
}

void GenerateCall::prepare(const StartFunction& start) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    if (deadline_ <= std::chrono::system_clock::now()) {
      fail_call(cancelled_status(), CancelCause::kDeadline);
      return;
    }
  }
  // The wake may outlive the call: it comes from the engine's thread.
  Result<std::shared_ptr<Generation>> generation = start(remaining_ms(), [weak = weak_from_this()] {
    if (const std::shared_ptr<GenerateCall> call = weak.lock()) call->post_pump();
  });
  const std::lock_guard lock(mutex_);
  if (finished_) {  // the client left meanwhile
    if (generation) (*generation)->cancel(cancelled_cause());
    return;
  }
  if (!generation) {
    fail_call(status_of(generation.error()), CancelCause::kGrpcCancel);
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
  if (finished_ || generation_ == nullptr) return;
  if (writing_) {
    watch_write();
    return;
  }
  if (cancelled_) {
    fail_call(cancelled_status(), cancelled_cause());
    return;
  }
  std::vector<ChoiceDelta> deltas = generation_->poll();
  const auto failed = std::find_if(deltas.begin(), deltas.end(), [](const ChoiceDelta& delta) {
    return delta.error.has_value();
  });
  if (failed != deltas.end()) {
    fail_call(status_of(*failed->error), cause_of(failed->error->code));
    return;
  }
  if (!deltas.empty() && deliver(std::move(deltas), *generation_)) {
    writing_ = true;
    ++num_writes_;
    return;
  }
  if (generation_->done()) {
    finished_ = true;
    finish_complete(*generation_);
    generation_.reset();
  }
}

void GenerateCall::on_written(bool ok) {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  if (write_alarm_ != nullptr) write_alarm_->Cancel();
  if (!ok) cancelled_ = true;
  post_pump();
}

void GenerateCall::on_cancelled() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (finished_) return;
  // The blocks come home now; the status waits for a write in flight, which fails at once.
  if (generation_ != nullptr) generation_->cancel(cancelled_cause());
  if (!writing_) fail_call(cancelled_status(), cancelled_cause());
}

void GenerateCall::release() {
  ticket_.reset();
  const std::shared_ptr<GenerateCall> last = std::move(self_);
}

/// Ends the call; what still runs of its generation is cancelled. The lock is held.
void GenerateCall::fail_call(const grpc::Status& status, CancelCause cause) {
  finished_ = true;
  if (generation_ != nullptr) generation_->cancel(cause);
  generation_.reset();
  finish_failed(status);
}

/// More is ready while a write is in flight: from now on the client has so long to read it. The
/// lock is held.
void GenerateCall::watch_write() {
  if (write_alarm_ != nullptr && num_writes_ == watched_write_) return;
  watched_write_ = num_writes_;
  write_alarm_ = std::make_unique<grpc::Alarm>();
  const auto deadline =
      std::chrono::system_clock::now() + std::chrono::seconds(kWriteTimeoutSeconds);
  write_alarm_->Set(deadline, [weak = weak_from_this(), write = num_writes_](bool expired) {
    const std::shared_ptr<GenerateCall> call = weak.lock();
    if (!expired || call == nullptr) return;
    const std::lock_guard lock(call->mutex_);
    if (call->finished_ || !call->writing_ || call->num_writes_ != write) return;
    if (call->generation_ != nullptr) call->generation_->cancel(CancelCause::kSlowClient);
    call->context_.TryCancel();
  });
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

grpc::Status GenerateCall::cancelled_status() const {
  if (deadline_passed())
    return status_of({ErrorCode::kDeadlineExceeded, "the call's deadline passed", ""});
  return status_of({ErrorCode::kCancelled, "the call was cancelled", ""});
}

CancelCause GenerateCall::cancelled_cause() const {
  return deadline_passed() ? CancelCause::kDeadline : CancelCause::kGrpcCancel;
}

}  // namespace kvasir::server
