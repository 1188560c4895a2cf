// One thread with a queue of tasks: where the gRPC door does what must block neither gRPC's threads
// nor the engine's. Bounds are the callers': each live call has at most a few tasks queued.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace kvasir::server {

class Worker {
 public:
  Worker();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Runs the task later on the worker's thread, in order of posting; drops it after stop(). Any
  /// thread; never waits for a task. Tasks must not throw.
  void post(std::function<void()> task);
  /// Runs what is queued and joins. Idempotent; not from a task.
  void stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvasir::server
