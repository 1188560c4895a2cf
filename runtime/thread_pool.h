// A fixed set of workers that run one task at a time over ranges fixed by (work, num_threads):
// results never depend on timing. Workers spin for a short while and then park; idle means no CPU.
// The caller is worker 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace kvasir::runtime {

struct WorkRange {
  std::size_t begin = 0, end = 0;
};
/// Part `index` of `count` items split over `num_parts`, in multiples of `granule`; parts differ by
/// at most one granule.
[[nodiscard]] WorkRange split_range(std::size_t count, std::size_t granule, std::uint32_t index,
                                    std::uint32_t num_parts);

class ThreadPool {
 public:
  /// Starts num_threads - 1 workers; num_threads >= 1. Throws std::system_error when the system
  /// allows no more threads.
  explicit ThreadPool(std::uint32_t num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] std::uint32_t num_threads() const;
  /// Calls task(worker_index) once on every worker and returns when all have ended. One caller at a
  /// time; tasks must not throw.
  void run(const std::function<void(std::uint32_t)>& task);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::runtime
