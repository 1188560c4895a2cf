// Reads /proc and /sys by hand: the files are a few words each, and a container may lack any of
// them.
#include "cli/machine.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sched.h>
#include <sstream>
#include <string_view>
#include <vector>

namespace kvasir::cli {
namespace {

/// cgroup v1 writes "no limit" as a number near 2^63, rounded down to pages.
constexpr std::uint64_t kNoLimitBytes = 1ULL << 62U;

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return line;
}

/// One line of /proc/self/cgroup: controllers ("" is version 2) and the path of this process's
/// group.
struct CgroupEntry {
  std::string controllers;
  std::string path;
};

std::vector<CgroupEntry> cgroup_entries(const std::string& root) {
  std::vector<CgroupEntry> entries;
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    entries.push_back({line.substr(first + 1, second - first - 1), line.substr(second + 1)});
  }
  return entries;
}

bool has_controller(const std::string& controllers, std::string_view wanted) {
  std::stringstream in(controllers);
  for (std::string word; std::getline(in, word, ',');) {
    if (word == wanted) return true;
  }
  return false;
}

/// Directories of the group and of all above it, up to the mount. In a container the path may be
/// the host's and not exist here; the mount itself is then the container's own group and comes
/// last.
std::vector<std::string> group_directories(const std::string& mount, std::string path) {
  std::vector<std::string> directories;
  while (!path.empty() && path != "/") {
    directories.push_back(mount + path);
    path.erase(path.rfind('/'));
  }
  directories.push_back(mount);
  return directories;
}

/// Calls `visit` with every directory whose limits hold for this process, by cgroup version.
void visit_groups(const std::string& root, std::string_view controller,
                  const std::function<void(int version, const std::string& directory)>& visit) {
  const std::string base = root + "/sys/fs/cgroup";
  for (const CgroupEntry& entry : cgroup_entries(root)) {
    std::vector<std::string> mounts;
    if (entry.controllers.empty()) {
      mounts = {base, base + "/unified"};
    } else if (has_controller(entry.controllers, controller)) {
      mounts = {base + "/" + entry.controllers};
      if (entry.controllers != controller) mounts.push_back(base + "/" + std::string(controller));
    }
    for (const std::string& mount : mounts) {
      for (const std::string& directory : group_directories(mount, entry.path)) {
        visit(entry.controllers.empty() ? 2 : 1, directory);
      }
    }
  }
}

std::optional<std::uint64_t> unsigned_number(const std::string& text) {
  std::uint64_t number = 0;
  std::istringstream in(text);
  if (text.empty() || text[0] == '-' || !(in >> number)) return std::nullopt;
  return number;
}

/// Quota over period in CPUs, or absent for "max", -1 and files that are not there.
std::optional<double> group_cpus(int version, const std::string& directory) {
  std::string quota_text;
  std::string period_text;
  if (version == 2) {
    std::istringstream in(first_line(directory + "/cpu.max").value_or(""));
    in >> quota_text >> period_text;
  } else {
    quota_text = first_line(directory + "/cpu.cfs_quota_us").value_or("");
    period_text = first_line(directory + "/cpu.cfs_period_us").value_or("");
  }
  const auto quota = unsigned_number(quota_text);
  const auto period = unsigned_number(period_text);
  if (!quota || !period || *quota == 0 || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

/// "Key:   123 kB" of /proc/meminfo in bytes; 0 when absent.
std::uint64_t meminfo_bytes(const std::string& root, std::string_view key) {
  std::ifstream in(root + "/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (line.size() <= key.size() || !line.starts_with(key) || line[key.size()] != ':') continue;
    std::istringstream rest(line.substr(key.size() + 1));
    std::uint64_t kib = 0;
    return rest >> kib ? kib * 1024 : 0;
  }
  return 0;
}

}  // namespace

std::optional<double> cgroup_cpus(const std::string& root) {
  std::optional<double> tightest;
  visit_groups(root, "cpu", [&](int version, const std::string& directory) {
    const auto cpus = group_cpus(version, directory);
    if (cpus) tightest = std::min(tightest.value_or(*cpus), *cpus);
  });
  return tightest;
}

std::optional<std::uint64_t> cgroup_memory_bytes(const std::string& root) {
  std::optional<std::uint64_t> tightest;
  visit_groups(root, "memory", [&](int version, const std::string& directory) {
    const std::string file = version == 2 ? "/memory.max" : "/memory.limit_in_bytes";
    const auto bytes = unsigned_number(first_line(directory + file).value_or(""));
    if (bytes && *bytes < kNoLimitBytes) tightest = std::min(tightest.value_or(*bytes), *bytes);
  });
  return tightest;
}

CpuLimit cpu_limit(const std::string& root, std::uint32_t affinity_cpus) {
  const auto quota = cgroup_cpus(root);
  if (quota) {
    const double whole = std::max(1.0, std::floor(*quota));
    if (whole < affinity_cpus) {
      char text[32];
      std::snprintf(text, sizeof(text), "%.3g", *quota);
      return {static_cast<std::uint32_t>(whole), "cgroup quota of " + std::string(text) + " CPUs"};
    }
  }
  return {affinity_cpus, "affinity mask of " + std::to_string(affinity_cpus) + " CPUs"};
}

std::uint32_t affinity_cpus() {
  // A machine may have more CPUs than cpu_set_t holds (1024): grow the mask until the kernel takes
  // it.
  for (int cpus = CPU_SETSIZE; cpus <= (1 << 20); cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(cpus));
    if (set == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(cpus));
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    const int width = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (width > 0) return static_cast<std::uint32_t>(width);
  }
  return 1;
}

MemoryLimit memory_limit(const std::string& root) {
  MemoryLimit limit;
  limit.limit_bytes = meminfo_bytes(root, "MemTotal");
  limit.reason = "MemTotal";
  limit.available_bytes = meminfo_bytes(root, "MemAvailable");
  const auto cgroup = cgroup_memory_bytes(root);
  if (cgroup && (limit.limit_bytes == 0 || *cgroup < limit.limit_bytes)) {
    limit.limit_bytes = *cgroup;
    limit.reason = "cgroup limit";
  }
  return limit;
}

}  // namespace kvasir::cli
