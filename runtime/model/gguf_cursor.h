// The fields of a GGUF file read one after another, none past the end, with errors that say where.
// For the parser's files of this folder only.
#pragma once

#include "runtime/model/printable.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace kvasir::runtime {

static_assert(std::endian::native == std::endian::little, "GGUF fields are copied as they are");

/// Thrown by what parses a GGUF file and caught in GgufFile::open.
struct GgufRefused {
  std::uint64_t offset = 0;
  std::string what;
};

inline std::string quoted(std::string_view text) { return '"' + printable(text) + '"'; }

/// Reads fields one after another; none is read past the end.
class GgufCursor {
 public:
  explicit GgufCursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  [[nodiscard]] std::uint64_t position() const { return position_; }
  [[nodiscard]] std::uint64_t left() const { return bytes_.size() - position_; }

  /// What is being read, put in front of the field's name in errors.
  void set_context(std::string context) { context_ = std::move(context); }

  [[noreturn]] void refuse(std::uint64_t offset, const std::string& what) const {
    throw GgufRefused{offset, context_.empty() ? what : context_ + ": " + what};
  }

  template <typename T>
  T read(std::string_view field) {
    static_assert(std::is_arithmetic_v<T>);
    need(sizeof(T), field);
    T value{};
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  /// A length of 64 bits and that many bytes, as a view into the file.
  std::string_view read_string(std::string_view field, std::uint64_t max_bytes) {
    const std::uint64_t start = position_;
    const auto length = read<std::uint64_t>(field);
    if (length > left()) {
      refuse(start, std::string(field) + " has a length of " + std::to_string(length) +
                        " bytes, but only " + std::to_string(left()) + " are left in the file");
    }
    if (length > max_bytes) {
      refuse(start, std::string(field) + " has a length of " + std::to_string(length) +
                        " bytes, at most " + std::to_string(max_bytes) + " are allowed");
    }
    const auto* text = reinterpret_cast<const char*>(bytes_.data() + position_);
    position_ += length;
    return {text, static_cast<std::size_t>(length)};
  }

  /// A count of 64 bits, bounded by `max` and by how many of the smallest entries fit into what is
  /// left of the file.
  std::uint64_t read_count(std::string_view field, std::uint64_t max,
                           std::uint64_t min_entry_bytes) {
    const std::uint64_t offset = position_;
    const auto count = read<std::uint64_t>(field);
    const std::uint64_t allowed = std::min(max, left() / min_entry_bytes);
    if (count > allowed) {
      refuse(offset, std::string(field) + " is " + std::to_string(count) + ", at most " +
                         std::to_string(allowed) + " are allowed (" + std::to_string(max) +
                         ", and what the rest of the file can hold)");
    }
    return count;
  }

 private:
  void need(std::uint64_t num_bytes, std::string_view field) const {
    if (num_bytes > left()) {
      refuse(position_, "the file ends inside " + std::string(field) + ": " +
                            std::to_string(num_bytes) + " bytes needed, " + std::to_string(left()) +
                            " left");
    }
  }

  std::span<const std::byte> bytes_;
  std::uint64_t position_ = 0;
  std::string context_;
};

}  // namespace kvasir::runtime
