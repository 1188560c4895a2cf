// The way into the engine: many writers, one reader. How many submissions may be inside is the
// engine's count, kept by the caller; cancels and drains always get in, there being at most a few
// for each live sequence. Once sealed it takes no submission any more, so that a reader which finds
// it sealed and empty can go without leaving one behind.
#pragma once

#include "engine/events.h"

#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

namespace kvasir::engine {

class Mailbox {
 public:
  /// All of them in order, or none: false once sealed.
  [[nodiscard]] bool post_submissions(std::vector<Submit> submissions) {
    {
      const std::lock_guard lock(mutex_);
      if (sealed_) return false;
      for (Submit& submission : submissions) commands_.emplace_back(std::move(submission));
    }
    ready_.notify_one();
    return true;
  }

  void post(Command command) {
    {
      const std::lock_guard lock(mutex_);
      commands_.push_back(std::move(command));
    }
    ready_.notify_one();
  }

  void seal() {
    {
      const std::lock_guard lock(mutex_);
      sealed_ = true;
    }
    ready_.notify_one();
  }

  [[nodiscard]] bool sealed() const {
    const std::lock_guard lock(mutex_);
    return sealed_;
  }

  /// Moves everything out, in order of arrival.
  [[nodiscard]] std::vector<Command> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(commands_, {});
  }

  /// Blocks until there is a command (true), or the box is sealed and empty (false).
  [[nodiscard]] bool wait() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return !commands_.empty() || sealed_; });
    return !commands_.empty();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<Command> commands_;
  bool sealed_ = false;
};

}  // namespace kvasir::engine
