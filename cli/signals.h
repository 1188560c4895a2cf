// The signals that end the daemon, taken by a thread of its own: whatever the main thread waits
// for, a signal is acted on at once. What a drain is, is serve's.
#pragma once

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

namespace kvasir::cli {

/// SIGTERM, SIGINT and SIGHUP (unless it was ignored at start, as nohup does). While loading the
/// first one ends the process with exit code 0: nothing has begun that would need an end. After
/// loaded() the first one is handed to wait(), and the second ends the process with 128 + signal.
class SignalWatch {
 public:
  /// Blocks the signals, which threads inherit: make it before any other thread. Ignores SIGPIPE.
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  void loaded();
  /// Waits for the first signal after loaded() and returns it.
  [[nodiscard]] int wait();

 private:
  void watch();
  void take(int signal);

  sigset_t set_{};
  sigset_t old_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool loaded_ = false;
  bool ending_ = false;
  int first_ = 0;
  std::thread thread_;
};

}  // namespace kvasir::cli
