// Metadata of a model looked up with its type and range checked, for the readers of this folder
// only. A key that is there with another type is refused, never taken for missing.
#pragma once

#include "runtime/model/gguf_reader.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir::runtime {

/// Thrown by MetadataReader and caught where a reader's public function turns it into an Error.
struct MetadataRefused {
  std::string message;
};

class MetadataReader {
 public:
  /// `file` must outlive the reader. `architecture` is the prefix of key().
  MetadataReader(const GgufFile& file, std::string architecture);

  /// "<architecture>.<name>".
  [[nodiscard]] std::string key(std::string_view name) const;

  /// Absent when the key is missing; refused when it has another type.
  [[nodiscard]] std::optional<std::string_view> text(std::string_view full_key) const;
  [[nodiscard]] std::optional<bool> boolean(std::string_view full_key) const;
  [[nodiscard]] std::optional<std::uint64_t> unsigned_integer(std::string_view full_key) const;
  /// A finite number; integers count.
  [[nodiscard]] std::optional<double> number(std::string_view full_key) const;

  /// A size from 1 to `max` of "<architecture>.<name>". An array with one entry for each layer
  /// counts when all its entries are equal.
  [[nodiscard]] std::optional<std::uint32_t> optional_size(std::string_view name,
                                                           std::uint64_t max) const;
  [[nodiscard]] std::uint32_t required_size(std::string_view name, std::uint64_t max) const;

  [[noreturn]] void refuse(std::string_view full_key, const std::string& why) const;
  [[noreturn]] void refuse_tensor(std::string_view name, const std::string& why) const;

 private:
  const GgufFile& file_;
  std::string architecture_;
};

}  // namespace kvasir::runtime
