#include "server/grpc/send_watch.h"

#include <chrono>

namespace kvasir::server {

void SendWatch::started() {
  const std::lock_guard lock(mutex_);
  if (done_) return;  // OnDone can be faster than the thread that finished the call
  outstanding_ = true;
  started_at_ = std::chrono::system_clock::now();
  if (alarm_ == nullptr) arm();
}

void SendWatch::ended() {
  const std::lock_guard lock(mutex_);
  outstanding_ =
      false;  // the alarm stays: setting one for every token would cost more than it does
}

void SendWatch::call_done() {
  const std::lock_guard lock(mutex_);
  done_ = true;
  alarm_.reset();  // cancels it
}

/// The lock is held.
void SendWatch::arm() {
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(started_at_ + timeout_, [weak = weak_from_this()](bool expired) {
    const std::shared_ptr<SendWatch> watch = weak.lock();
    if (expired && watch != nullptr) watch->check();
  });
}

/// The alarm: the last send has been outstanding for too long, or is looked at again when it will
/// have been, or there is nothing to watch.
void SendWatch::check() {
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    if (!outstanding_) {
      alarm_.reset();
      return;
    }
    if (std::chrono::system_clock::now() < started_at_ + timeout_) {
      arm();
      return;
    }
  }
  on_stalled_();
  const std::lock_guard lock(mutex_);
  if (!done_) context_.TryCancel();
}

}  // namespace kvasir::server
