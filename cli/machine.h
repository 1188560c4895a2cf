// What this process may use of the machine: CPUs by cgroup quota and affinity mask, memory by
// cgroup limit or size. Files are read below a root directory, so that tests bring their own /proc
// and /sys. Nothing is decided here about use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvasir::cli {

struct CpuLimit {
  std::uint32_t threads = 1;
  std::string reason;  // "cgroup quota of 1.5 CPUs", "affinity mask of 2 CPUs"
};

/// The smaller of floor(cgroup quota), at least 1, and the width of the affinity mask. Versions 1
/// and 2 of cgroups, the process's own group and all groups above it.
[[nodiscard]] CpuLimit cpu_limit(const std::string& root, std::uint32_t affinity_cpus);
/// CPUs in the affinity mask of this process; at least 1.
[[nodiscard]] std::uint32_t affinity_cpus();

struct MemoryLimit {
  std::uint64_t limit_bytes = 0;      // 0: unknown
  std::string reason;                 // "cgroup limit", "MemTotal"
  std::uint64_t available_bytes = 0;  // MemAvailable; 0: unknown
};

[[nodiscard]] MemoryLimit memory_limit(const std::string& root);

/// CPUs of the tightest cgroup quota; absent without one.
[[nodiscard]] std::optional<double> cgroup_cpus(const std::string& root);
/// Bytes of the tightest cgroup memory limit; absent without one.
[[nodiscard]] std::optional<std::uint64_t> cgroup_memory_bytes(const std::string& root);

}  // namespace kvasir::cli
