// The signals that end the daemon or have it read its files again, taken by a thread of its own:
// whatever the main thread waits for, one that ends is acted on at once. What a drain and a reload
// are is serve's.
#pragma once

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

namespace kvasir::cli {

/// While loading, SIGTERM or SIGINT ends the process with exit code 0: nothing has begun that would
/// need an end. After loaded() the first of them is handed to wait(), and the second ends the
/// process with 128 + signal. SIGHUP (unless it was ignored at start, as nohup does) is handed to
/// wait(); while loading and after the first of the others there is nothing that it could change.
class SignalWatch {
 public:
  /// Blocks the signals, which threads inherit: make it before any other thread. Ignores SIGPIPE.
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  void loaded();
  /// Waits for SIGTERM or SIGINT and returns it, now and ever after; before, SIGHUP may come any
  /// number of times. Several of those at once are one.
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
  bool hung_up_ = false;  // and not handed over yet
  int first_ = 0;         // of the signals that end
  std::thread thread_;
};

}  // namespace kvasir::cli
