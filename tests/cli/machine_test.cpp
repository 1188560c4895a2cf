// CPU and memory limits read from made-up /proc and /sys trees of both cgroup versions.
#include "cli/machine.h"

#include "tests/support/catch.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

using namespace kvasir::cli;

namespace {

/// A root directory with the files that a test puts there.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "kvasir-root-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
    write("proc/meminfo", "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    9000 kB\n");
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text << '\n';
  }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("cpu_limit: without a quota the affinity mask decides", "[cli]") {
  const FakeRoot root;
  CHECK(cpu_limit(root.path(), 6).threads == 6);
  CHECK(cpu_limit(root.path(), 6).reason == "affinity mask of 6 CPUs");
  root.write("proc/self/cgroup", "0::/a");
  root.write("sys/fs/cgroup/a/cpu.max", "max 100000");
  CHECK(cpu_limit(root.path(), 6).threads == 6);
}

TEST_CASE("cpu_limit: a version 2 quota is rounded down, but never to nothing", "[cli]") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/a");
  root.write("sys/fs/cgroup/a/cpu.max", "350000 100000");
  CHECK(cpu_limit(root.path(), 6).threads == 3);
  CHECK(cpu_limit(root.path(), 6).reason == "cgroup quota of 3.5 CPUs");
  CHECK(cpu_limit(root.path(), 2).reason == "affinity mask of 2 CPUs");
  root.write("sys/fs/cgroup/a/cpu.max", "50000 100000");
  CHECK(cpu_limit(root.path(), 6).threads == 1);
}

TEST_CASE("cpu_limit: a quota of a group above counts too", "[cli]") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/kube/pod/app");
  root.write("sys/fs/cgroup/kube/pod/app/cpu.max", "max 100000");
  root.write("sys/fs/cgroup/kube/cpu.max", "200000 100000");
  CHECK(cpu_limit(root.path(), 8).threads == 2);
}

TEST_CASE("cpu_limit: version 1 quotas are found by controller", "[cli]") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/c\n0::/");
  root.write("sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "-1");
  root.write("sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000");
  CHECK(cpu_limit(root.path(), 8).threads == 8);
  root.write("sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "400000");
  CHECK(cpu_limit(root.path(), 8).threads == 4);
}

TEST_CASE("cpu_limit: in a container the mount itself is the group", "[cli]") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "4:cpu,cpuacct:/docker/0123");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  CHECK(cpu_limit(root.path(), 8).threads == 2);
}

TEST_CASE("cpu_limit: damaged files are no limit", "[cli]") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "nonsense\n0::/a");
  for (const char* text : {"", "x y", "100000", "0 100000", "100000 0", "-5 100000"}) {
    root.write("sys/fs/cgroup/a/cpu.max", text);
    CHECK(cpu_limit(root.path(), 4).threads == 4);
  }
}

TEST_CASE("memory_limit: the tightest of the cgroups and the machine is taken", "[cli]") {
  const FakeRoot root;
  CHECK(memory_limit(root.path()).limit_bytes == 16000U * 1024);
  CHECK(memory_limit(root.path()).reason == "MemTotal");
  CHECK(memory_limit(root.path()).available_bytes == 9000U * 1024);
  root.write("proc/self/cgroup", "0::/a/b");
  root.write("sys/fs/cgroup/a/b/memory.max", "max");
  root.write("sys/fs/cgroup/a/memory.max", "4096000");
  CHECK(memory_limit(root.path()).limit_bytes == 4096000);
  CHECK(memory_limit(root.path()).reason == "cgroup limit");
  root.write("sys/fs/cgroup/a/b/memory.max", "2048000");
  CHECK(memory_limit(root.path()).limit_bytes == 2048000);
}

TEST_CASE("memory_limit: version 1 writes no limit as a huge number", "[cli]") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "5:memory:/m");
  root.write("sys/fs/cgroup/memory/m/memory.limit_in_bytes", "9223372036854771712");
  CHECK(memory_limit(root.path()).reason == "MemTotal");
  root.write("sys/fs/cgroup/memory/m/memory.limit_in_bytes", "1000000");
  CHECK(memory_limit(root.path()).limit_bytes == 1000000);
}

TEST_CASE("memory_limit: without /proc the limit is unknown", "[cli]") {
  CHECK(memory_limit("/nonexistent").limit_bytes == 0);
}

TEST_CASE("affinity_cpus: at least one CPU is ours", "[cli]") { CHECK(affinity_cpus() >= 1); }
