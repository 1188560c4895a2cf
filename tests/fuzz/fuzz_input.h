// What all fuzz targets share: taking structured values off the front of libFuzzer's bytes, and a
// check that ends the run with a message. What is checked is each target's own business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>
#include <string_view>

namespace kvasir::fuzz {

/// Ends the process, so that libFuzzer keeps the input, unless `holds`.
inline void require(bool holds, std::string_view what, std::string_view detail = {}) {
  if (holds) return;
  std::cerr << "does not hold: " << what << (detail.empty() ? "" : ": ") << detail << '\n';
  std::abort();
}

/// The input's bytes from front to back; zeros when they are used up.
class ByteSource {
 public:
  ByteSource(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  [[nodiscard]] bool empty() const { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8U | byte();
    return value;
  }
  std::string take(std::size_t size) {
    size = size < rest_.size() ? size : rest_.size();
    std::string bytes(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(size));
    rest_ = rest_.subspan(size);
    return bytes;
  }
  /// Up to the next zero byte, which is taken and left out, or to the end.
  std::string take_text() {
    std::size_t size = 0;
    while (size < rest_.size() && rest_[size] != 0) ++size;
    std::string text = take(size);
    if (!rest_.empty()) byte();
    return text;
  }
  std::string take_all() { return take(rest_.size()); }

 private:
  std::span<const std::uint8_t> rest_;
};

}  // namespace kvasir::fuzz
