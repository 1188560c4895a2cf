// Large memory straight from the system: zeroed, aligned to huge pages and backed by them where the
// system grants it, touched on first use. What lies in it is its owner's business.
#pragma once

#include <cstddef>

namespace kvasir {

class PageBuffer {
 public:
  PageBuffer() = default;
  /// Reserves at least `bytes` bytes of zeros. Throws std::bad_alloc when the address space is
  /// refused.
  explicit PageBuffer(std::size_t bytes);
  ~PageBuffer();
  PageBuffer(PageBuffer&& other) noexcept;
  PageBuffer& operator=(PageBuffer&& other) noexcept;
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;

  [[nodiscard]] std::byte* data() { return data_; }
  [[nodiscard]] const std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size_bytes() const { return size_bytes_; }  // rounded up to huge pages

 private:
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace kvasir
