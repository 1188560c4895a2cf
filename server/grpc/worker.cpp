#include "server/grpc/worker.h"

#include <utility>

namespace kvasir::server {

Worker::Worker() : thread_([this] { run(); }) {}

Worker::~Worker() { stop(); }

void Worker::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void Worker::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Worker::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it held is released outside the lock
    lock.lock();
  }
}

}  // namespace kvasir::server
