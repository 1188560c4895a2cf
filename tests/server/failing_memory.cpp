#include "tests/server/failing_memory.h"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace {
std::atomic<std::size_t> g_failing_bytes{std::numeric_limits<std::size_t>::max()};
}

// All forms for one object that is not over-aligned: a sanitizer's own would not match ours.
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  if (bytes >= g_failing_bytes.load(std::memory_order_relaxed)) return nullptr;
  return std::malloc(bytes > 0 ? bytes : 1);
}
void* operator new(std::size_t bytes) {
  void* memory = ::operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t& /*tag*/) noexcept { std::free(memory); }

namespace kvasir::server::testing {

FailingMemory::FailingMemory(std::size_t least_bytes) { g_failing_bytes.store(least_bytes); }
FailingMemory::~FailingMemory() { g_failing_bytes.store(std::numeric_limits<std::size_t>::max()); }

}  // namespace kvasir::server::testing
