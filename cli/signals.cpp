// sigwait turns signals into values, so that nothing here runs in a handler.
#include "cli/signals.h"

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <pthread.h>

namespace kvasir::cli {

SignalWatch::SignalWatch() {
  sigemptyset(&set_);
  sigaddset(&set_, SIGTERM);
  sigaddset(&set_, SIGINT);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&set_, SIGHUP);
  std::signal(SIGPIPE, SIG_IGN);
  pthread_sigmask(SIG_BLOCK, &set_, &old_);
  thread_ = std::thread([this] { watch(); });
}

SignalWatch::~SignalWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGTERM);  // only to end its sigwait
  thread_.join();
  // What comes from here on ends the process as it would have without us.
  pthread_sigmask(SIG_SETMASK, &old_, nullptr);
}

void SignalWatch::loaded() {
  const std::lock_guard lock(mutex_);
  loaded_ = true;
}

int SignalWatch::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return first_ != 0 || hung_up_; });
  if (first_ != 0) return first_;
  hung_up_ = false;
  return SIGHUP;
}

void SignalWatch::watch() {
  for (;;) {
    int signal = 0;
    if (sigwait(&set_, &signal) != 0) continue;
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    take(signal);
  }
}

void SignalWatch::take(int signal) {
  if (signal == SIGHUP) {
    if (loaded_) hung_up_ = true;
    changed_.notify_one();
    return;
  }
  if (!loaded_) {
    spdlog::info("signal {} while loading: stopped", signal);
    std::_Exit(0);
  }
  if (first_ != 0) {
    spdlog::warn("second signal ({}): ending at once", signal);
    std::_Exit(128 + signal);
  }
  first_ = signal;
  changed_.notify_one();
}

}  // namespace kvasir::cli
