#include "runtime/thread_pool.h"

#include "core/check.h"

#include <algorithm>
#include <atomic>
#include <immintrin.h>
#include <thread>
#include <vector>

namespace kvasir::runtime {
namespace {

// A pause is some 40 cycles on current cores, so this is about 20 us: longer than the gaps between
// the kernels of one step, far shorter than the gap between requests.
constexpr int kSpins = 2000;

/// Returns once `value` differs from `old`: first spinning, then parked.
std::uint32_t wait_while_equal(const std::atomic<std::uint32_t>& value, std::uint32_t old,
                               int spins) {
  for (int i = 0; i < spins; ++i) {
    const std::uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    _mm_pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

WorkRange split_range(std::size_t count, std::size_t granule, std::uint32_t index,
                      std::uint32_t num_parts) {
  KVASIR_CHECK(granule > 0);
  KVASIR_CHECK(index < num_parts);
  const std::size_t granules = (count + granule - 1) / granule;
  const std::size_t each = granules / num_parts;
  const std::size_t longer_parts = granules % num_parts;
  const auto start = [&](std::size_t part) {
    return std::min(count, (part * each + std::min(part, longer_parts)) * granule);
  };
  return {start(index), start(std::size_t{index} + 1)};
}

struct ThreadPool::Impl {
  explicit Impl(std::uint32_t num_threads)
      : num_workers(num_threads - 1),
        // Spinning while another thread waits for the core only delays it.
        spins(num_threads <= std::thread::hardware_concurrency() ? kSpins : 0) {
    threads.reserve(num_workers);
    try {
      for (std::uint32_t i = 1; i <= num_workers; ++i) {
        threads.emplace_back([this, i] { work(i); });
      }
    } catch (...) {  // std::system_error: the system allows no more threads
      join();
      throw;
    }
  }

  void join() {
    stop = true;
    publish();
    for (std::thread& thread : threads) thread.join();
  }

  void work(std::uint32_t worker_index) {
    std::uint32_t seen = 0;
    for (;;) {
      seen = wait_while_equal(epoch, seen, spins);
      if (stop) return;
      (*task)(worker_index);
      if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
    }
  }

  /// Makes what was written before it visible to the workers and wakes them.
  void publish() {
    epoch.fetch_add(1, std::memory_order_acq_rel);
    epoch.notify_all();
  }

  const std::uint32_t num_workers;
  const int spins;
  // Written by the caller before publish(), read by workers after it.
  const std::function<void(std::uint32_t)>* task = nullptr;
  bool stop = false;
  // Apart, so that workers spinning on one do not slow down the other.
  alignas(64) std::atomic<std::uint32_t> epoch{0};
  alignas(64) std::atomic<std::uint32_t> unfinished{0};
  std::vector<std::thread> threads;
};

ThreadPool::ThreadPool(std::uint32_t num_threads) {
  KVASIR_CHECK(num_threads >= 1);
  impl_ = std::make_unique<Impl>(num_threads);
}

ThreadPool::~ThreadPool() { impl_->join(); }

std::uint32_t ThreadPool::num_threads() const { return impl_->num_workers + 1; }

void ThreadPool::run(const std::function<void(std::uint32_t)>& task) {
  if (impl_->num_workers > 0) {
    impl_->task = &task;
    impl_->unfinished.store(impl_->num_workers, std::memory_order_relaxed);
    impl_->publish();
  }
  task(0);
  std::uint32_t left = impl_->unfinished.load(std::memory_order_acquire);
  while (left != 0) left = wait_while_equal(impl_->unfinished, left, impl_->spins);
}

}  // namespace kvasir::runtime
