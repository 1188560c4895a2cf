#include "server/grpc/send_watch.h"

#include <chrono>

namespace kvasir::server {

void SendWatch::started() {
  const std::lock_guard lock(mutex_);
  if (done_) return;  // OnDone can be faster than the thread that finished the call
  outstanding_ = true;
  ++num_sends_;
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
  const auto deadline =
      std::chrono::system_clock::now() + std::chrono::seconds(kSendTimeoutSeconds);
  alarm_->Set(deadline, [weak = weak_from_this(), send = num_sends_](bool expired) {
    const std::shared_ptr<SendWatch> watch = weak.lock();
    if (expired && watch != nullptr) watch->check(send);
  });
}

/// The alarm: the send that was last when it was set is still outstanding, or another period
/// begins, or there is nothing to watch.
void SendWatch::check(std::uint64_t watched_send) {
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    if (!outstanding_) {
      alarm_.reset();
      return;
    }
    if (num_sends_ != watched_send) {
      arm();
      return;
    }
  }
  on_stalled_();
  const std::lock_guard lock(mutex_);
  if (!done_) context_.TryCancel();
}

}  // namespace kvasir::server
