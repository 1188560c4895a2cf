// The memory that a step computes in: one stretch on huge pages, carved once at construction into
// the arrays of the decoder and of attention, so that rows cost few page walks and a step does not
// depend on where small pages happen to lie.
#pragma once

#include "core/check.h"
#include "core/page_buffer.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvasir::runtime {

/// Floats of a row of `count` floats, so that the next row is aligned too.
[[nodiscard]] constexpr std::size_t padded_floats(std::size_t count) {
  return (count + 15) / 16 * 16;
}

class StepMemory {
 public:
  static constexpr std::size_t kAlignment = 64;

  /// Bytes that an array of `count` elements takes here.
  template <typename T>
  [[nodiscard]] static constexpr std::uint64_t bytes_of(std::uint64_t count) {
    return (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }

  /// Throws std::bad_alloc.
  explicit StepMemory(std::uint64_t bytes) : pages_(bytes) {}

  /// The next `count` elements, zero, 64-byte aligned. Requires: they were counted in the
  /// constructor's bytes.
  template <typename T>
  [[nodiscard]] std::span<T> take(std::uint64_t count) {
    const std::uint64_t begin = used_bytes_;
    used_bytes_ += bytes_of<T>(count);
    KVASIR_CHECK(used_bytes_ <= pages_.size_bytes(), used_bytes_ << " of " << pages_.size_bytes());
    return {reinterpret_cast<T*>(pages_.data() + begin), count};
  }
  [[nodiscard]] std::uint64_t used_bytes() const { return used_bytes_; }

 private:
  PageBuffer pages_;
  std::uint64_t used_bytes_ = 0;
};

}  // namespace kvasir::runtime
