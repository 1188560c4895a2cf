// Ends a call whose client does not take in what was sent to it: a write, or the answer itself,
// that stays with gRPC because the client's window is shut. What that means for the work behind the
// call is the caller's.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace kvasir::server {

/// Thread-safe. One for each call, held by shared_ptr, because its alarm may outlive the call.
class SendWatch : public std::enable_shared_from_this<SendWatch> {
 public:
  /// `timeout` is how long a client may leave one message unread. `on_stalled` is called once at
  /// most, before the call is cancelled, with no lock held.
  SendWatch(grpc::CallbackServerContext& context, std::chrono::milliseconds timeout,
            std::function<void()> on_stalled)
      : context_(context), timeout_(timeout), on_stalled_(std::move(on_stalled)) {}

  /// A write or the finish was handed to gRPC. Of the finish, the end is call_done().
  void started();
  /// The write has ended.
  void ended();
  /// OnDone: the context is not touched any more.
  void call_done();

 private:
  void arm();
  void check();

  grpc::CallbackServerContext& context_;
  const std::chrono::milliseconds timeout_;
  const std::function<void()> on_stalled_;

  std::mutex mutex_;  // guards what follows
  bool outstanding_ = false;
  bool done_ = false;
  std::chrono::system_clock::time_point started_at_;  // of the last send
  std::unique_ptr<grpc::Alarm> alarm_;                // set while something may be outstanding
};

}  // namespace kvasir::server
