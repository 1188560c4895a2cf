#include "core/page_buffer.h"

#include <cstdint>
#include <limits>
#include <new>
#include <sys/mman.h>
#include <utility>

namespace kvasir {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

/// Reserves `bytes` (a multiple of kHugePageBytes) on a huge page boundary.
std::byte* map_aligned(std::size_t bytes) {
  const std::size_t padded = bytes + kHugePageBytes;
  void* const mapped = mmap(nullptr, padded, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const start = static_cast<std::byte*>(mapped);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(start) % kHugePageBytes;
  const std::size_t head = (kHugePageBytes - misaligned) % kHugePageBytes;
  const std::size_t tail = padded - head - bytes;
  if (head > 0) munmap(start, head);
  if (tail > 0) munmap(start + head + bytes, tail);
  return start + head;
}

}  // namespace

PageBuffer::PageBuffer(std::size_t bytes) {
  if (bytes == 0) return;
  if (bytes > std::numeric_limits<std::size_t>::max() - 2 * kHugePageBytes) throw std::bad_alloc();
  size_bytes_ = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  data_ = map_aligned(size_bytes_);
  // A wish: where it is refused, small pages serve as well.
  madvise(data_, size_bytes_, MADV_HUGEPAGE);
}

PageBuffer::~PageBuffer() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
}

PageBuffer::PageBuffer(PageBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

}  // namespace kvasir
