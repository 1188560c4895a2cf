// What this process holds, as malloc and the system count it: for tests that compare it with what
// the code says that it holds.
#pragma once

#include <cstdint>
#include <fstream>
#include <malloc.h>
#include <unistd.h>

namespace kvasir::test {

/// Bytes in use from malloc, and bytes mapped beside it (PageBuffer; thread stacks too). Nothing
/// where the allocator does not say (sanitizers).
inline std::uint64_t held_bytes() {
  const struct mallinfo2 info = mallinfo2();
  if (info.uordblks + info.hblkhd == 0) return 0;
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const std::uint64_t mapped = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return info.uordblks + mapped - info.arena;
}

/// What PageBuffer rounds a buffer up by, at most.
inline constexpr double kPageRoundingBytes = 2.0 * 1024 * 1024;

}  // namespace kvasir::test
