// Waiting is spinning for a while, then parking in the kernel: a team that has nothing to do takes
// no CPU time, and phases of a step follow each other without a system call.
#include "runtime/worker_team.h"

#include "core/check.h"

#include <algorithm>
#include <atomic>
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <thread>
#include <vector>

namespace kvasir::runtime {
namespace {

// A pause is 40 to 65 cycles on current cores, so this is some 100 us: longer than what lies
// between two steps and than most differences between two workers' shares, far shorter than the gap
// between requests. Waking a parked thread takes up to 50 us.
constexpr int kSpins = 8000;

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

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;  // more CPUs than a set holds
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

/// Of the list, or what the system says where there is none.
std::size_t num_cpus(const std::vector<int>& cpus) {
  return cpus.empty() ? std::max(1U, std::thread::hardware_concurrency()) : cpus.size();
}

/// A wish: where it is refused, the thread runs where the system puts it.
void stay_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
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

struct WorkerTeam::Impl {
  explicit Impl(std::uint32_t threads)
      : num_threads(threads),
        cpus(allowed_cpus()),
        // Spinning while another thread waits for the core only delays it.
        spins(threads <= num_cpus(cpus) ? kSpins : 0) {
    workers.reserve(num_threads - 1);
    try {
      for (std::uint32_t i = 1; i < num_threads; ++i) {
        workers.emplace_back([this, i] { work(i); });
      }
    } catch (...) {  // std::system_error: the system allows no more threads
      join();
      throw;
    }
  }

  void join() {
    stop = true;
    advance(epoch);
    for (std::thread& worker : workers) worker.join();
  }

  void work(std::uint32_t worker_index) {
    // The caller is not pinned: threads that it starts would inherit that.
    if (num_threads == cpus.size()) stay_on(cpus[worker_index]);
    std::uint32_t seen = 0;
    for (;;) {
      seen = wait_while_equal(epoch, seen, spins);
      if (stop) return;
      (*task)(worker_index);
      sync();
    }
  }

  /// Makes what was written before it visible to those who wait and wakes them.
  static void advance(std::atomic<std::uint32_t>& value) {
    value.fetch_add(1, std::memory_order_acq_rel);
    value.notify_all();  // a load when nobody is parked
  }

  /// The last to arrive lets the others go. `phase` cannot change before this worker has arrived,
  /// so reading it first is safe.
  void sync() {
    const std::uint32_t now = phase.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads) {
      arrived.store(0, std::memory_order_relaxed);
      advance(phase);
    } else {
      (void)wait_while_equal(phase, now, spins);
    }
  }

  const std::uint32_t num_threads;
  const std::vector<int> cpus;
  const int spins;
  // Written by the caller before the epoch advances, read by workers after it.
  const std::function<void(std::uint32_t)>* task = nullptr;
  bool stop = false;
  // Apart, so that workers spinning on one do not slow down the others.
  alignas(64) std::atomic<std::uint32_t> epoch{0};
  alignas(64) std::atomic<std::uint32_t> arrived{0};
  alignas(64) std::atomic<std::uint32_t> phase{0};
  alignas(64) std::vector<std::thread> workers;
};

WorkerTeam::WorkerTeam(std::uint32_t num_threads) {
  KVASIR_CHECK(num_threads >= 1);
  impl_ = std::make_unique<Impl>(num_threads);
}

WorkerTeam::~WorkerTeam() { impl_->join(); }

std::uint32_t WorkerTeam::num_threads() const { return impl_->num_threads; }

void WorkerTeam::run(const std::function<void(std::uint32_t)>& task) {
  if (impl_->num_threads == 1) return task(0);
  impl_->task = &task;
  Impl::advance(impl_->epoch);
  task(0);
  impl_->sync();
}

void WorkerTeam::sync() {
  if (impl_->num_threads > 1) impl_->sync();
}

}  // namespace kvasir::runtime
