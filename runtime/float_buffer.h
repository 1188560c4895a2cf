// Arrays that start on a 64-byte boundary, with rows padded to it, as the kernels like them.
// Sized once at construction; nothing here computes.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace kvasir::runtime {

template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  CacheLineAllocator() = default;
  template <typename U>
  explicit CacheLineAllocator(const CacheLineAllocator<U>& /*other*/) {}

  [[nodiscard]] T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* memory, std::size_t /*count*/) { ::operator delete(memory, kAlignment); }
  friend bool operator==(const CacheLineAllocator&, const CacheLineAllocator&) { return true; }
};

using FloatBuffer = std::vector<float, CacheLineAllocator<float>>;
using ByteBuffer = std::vector<std::byte, CacheLineAllocator<std::byte>>;

/// Floats of a row of `count` floats, so that the next row is aligned too.
[[nodiscard]] constexpr std::size_t padded_floats(std::size_t count) {
  return (count + 15) / 16 * 16;
}

}  // namespace kvasir::runtime
