// A GGUF file (versions 2 and 3, little-endian), mapped and checked: every length, count, offset
// and product is bounded by the file's size before it is used. What the keys mean is model_config's
// and the CLI's business.
#pragma once

#include "core/result.h"
#include "runtime/model/ggml_type.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvasir::runtime {

/// A metadata value. Integers are widened; arrays are homogeneous.
using GgufValue = std::variant<std::uint64_t, std::int64_t, double, bool, std::string,
                               std::vector<std::uint64_t>, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<bool>, std::vector<std::string>>;

struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<std::uint64_t>
      dims;  // 1 to 4, fastest first: a matrix [rows, cols] has dims {cols, rows}
  std::span<const std::byte> data;  // in the mapping
};

class GgufFile {
 public:
  /// Errors: kInvalidModelFile with one line naming file, offset and field.
  [[nodiscard]] static Result<std::unique_ptr<GgufFile>> open(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  [[nodiscard]] const std::string& path() const;
  [[nodiscard]] std::uint64_t size_bytes() const;
  [[nodiscard]] std::uint32_t version() const;

  /// Keys in file order.
  [[nodiscard]] const std::vector<std::pair<std::string, GgufValue>>& metadata() const;
  [[nodiscard]] const GgufValue* find(std::string_view key) const;
  /// Typed look-ups: absent when the key is missing or of another type. Unsigned accepts
  /// non-negative signed values.
  [[nodiscard]] std::optional<std::uint64_t> find_uint(std::string_view key) const;
  [[nodiscard]] std::optional<double> find_float(std::string_view key) const;
  [[nodiscard]] std::optional<bool> find_bool(std::string_view key) const;
  [[nodiscard]] std::optional<std::string_view> find_string(std::string_view key) const;

  [[nodiscard]] const std::vector<GgufTensor>& tensors() const;
  [[nodiscard]] const GgufTensor* find_tensor(std::string_view name) const;

  /// Gives back the memory of tensor data that was read, up to whole pages; reading it again costs
  /// time and nothing else. `data` is part of a tensor's.
  void release_pages(std::span<const std::byte> data) const;

 private:
  struct Impl;
  explicit GgufFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::runtime
