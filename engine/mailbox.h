// The bounded way into the engine: many writers, one reader. Submissions past the bound are refused by the caller's
// choice of room; cancels and drains always get in, there being at most one of each for a live sequence.
// What a command means is the engine's business.
#pragma once

#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/events.h"

namespace kvasir::engine {

class Mailbox {
 public:
  void post(std::vector<Command> commands) {
    {
      const std::lock_guard lock(mutex_);
      for (Command& command : commands) commands_.push_back(std::move(command));
    }
    ready_.notify_one();
  }

  void post(Command command) {
    {
      const std::lock_guard lock(mutex_);
      commands_.push_back(std::move(command));
    }
    ready_.notify_one();
  }

  /// Moves everything out, in order of arrival.
  [[nodiscard]] std::vector<Command> drain() {
    const std::lock_guard lock(mutex_);
    return std::exchange(commands_, {});
  }

  /// Blocks until there is a command or close() was called.
  void wait() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return !commands_.empty() || closed_; });
  }

  /// Wakes the reader for good: wait() no longer blocks.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_one();
  }

  [[nodiscard]] bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

  [[nodiscard]] bool empty() const {
    const std::lock_guard lock(mutex_);
    return commands_.empty();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<Command> commands_;
  bool closed_ = false;
};

}  // namespace kvasir::engine
