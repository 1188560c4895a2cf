// Workers that compute one step together: the calling thread and num_threads - 1 threads of the
// team's own. A task runs on all of them at once and meets at sync() between its phases. Work is
// split by index, never by timing, so a result does not depend on who was fast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace kvasir::runtime {

/// Half-open [begin, end).
struct WorkRange {
  std::size_t begin = 0, end = 0;
};

/// Part `index` of `count` items cut into num_parts in multiples of `granule`; parts differ by
/// at most one granule.
[[nodiscard]] WorkRange split_range(std::size_t count, std::size_t granule, std::uint32_t index,
                                    std::uint32_t num_parts);

class WorkerTeam {
 public:
  /// Starts num_threads - 1 workers; num_threads >= 1. When the team has as many threads as there
  /// are CPUs to run on, each worker stays on one of them; a smaller team is placed by the system,
  /// which knows what else runs. Throws std::system_error when the system allows no more threads.
  explicit WorkerTeam(std::uint32_t num_threads);
  ~WorkerTeam();
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  [[nodiscard]] std::uint32_t num_threads() const;
  /// Calls task(worker_index) once on every worker, the caller being worker 0, and returns when all
  /// have ended. One caller at a time; tasks must not throw.
  void run(const std::function<void(std::uint32_t)>& task);
  /// Inside a task: returns once every worker has called it, and what they wrote before is visible
  /// after. Every worker of the task calls it equally often.
  void sync();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::runtime
