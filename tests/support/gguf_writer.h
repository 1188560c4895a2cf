// Writes small GGUF files for tests, good ones and damaged ones: every count, length and offset can
// be given a wrong value. It knows the container only, not what the keys of a model mean.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace kvasir::test {

/// Numbers of the metadata value types in the file.
enum class GgufKind : std::uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

/// Little-endian bytes, one field after another.
class ByteWriter {
 public:
  template <typename T>
  ByteWriter& number(T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    bytes_.append(bytes, sizeof(T));
    return *this;
  }
  ByteWriter& kind(GgufKind value) { return number(static_cast<std::uint32_t>(value)); }
  ByteWriter& text(std::string_view value) {
    return number(std::uint64_t{value.size()}).raw(value);
  }
  ByteWriter& raw(std::string_view value) {
    bytes_.append(value);
    return *this;
  }
  [[nodiscard]] std::string bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

struct GgufTensorSpec {
  std::string name;
  std::vector<std::uint64_t> dims;  // fastest first
  std::uint32_t type = 0;
  std::string data;
  std::optional<std::uint64_t> offset;  // instead of the next free aligned one
};

/// A GGUF file in memory. Keys and tensors are in the order of their first mention.
class GgufWriter {
 public:
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::optional<std::uint64_t> num_keys;  // instead of the real number
  std::optional<std::uint64_t> num_tensors;
  std::uint64_t alignment = 32;  // of the data; the key is the caller's

  /// Adds or replaces. `encoded` is what follows the value's kind.
  GgufWriter& set_raw(const std::string& key, GgufKind kind, std::string encoded) {
    std::string value = ByteWriter().kind(kind).bytes() + std::move(encoded);
    for (auto& [name, held] : keys_) {
      if (name == key) {
        held = std::move(value);
        return *this;
      }
    }
    keys_.emplace_back(key, std::move(value));
    return *this;
  }
  GgufWriter& set(const std::string& key, std::uint32_t value) {
    return set_raw(key, GgufKind::kUint32, ByteWriter().number(value).bytes());
  }
  GgufWriter& set(const std::string& key, float value) {
    return set_raw(key, GgufKind::kFloat32, ByteWriter().number(value).bytes());
  }
  GgufWriter& set_bool(const std::string& key, bool value) {
    return set_raw(key, GgufKind::kBool, ByteWriter().number(std::uint8_t{value}).bytes());
  }
  GgufWriter& set_text(const std::string& key, std::string_view value) {
    return set_raw(key, GgufKind::kString, ByteWriter().text(value).bytes());
  }
  GgufWriter& set_texts(const std::string& key, const std::vector<std::string>& values) {
    ByteWriter bytes;
    bytes.kind(GgufKind::kString).number(std::uint64_t{values.size()});
    for (const std::string& value : values) bytes.text(value);
    return set_raw(key, GgufKind::kArray, bytes.bytes());
  }
  template <typename T>
  GgufWriter& set_numbers(const std::string& key, GgufKind kind, const std::vector<T>& values) {
    ByteWriter bytes;
    bytes.kind(kind).number(std::uint64_t{values.size()});
    for (const T value : values) bytes.number(value);
    return set_raw(key, GgufKind::kArray, bytes.bytes());
  }
  /// Adds a second entry of a key that is there.
  GgufWriter& repeat(const std::string& key) {
    const std::size_t count = keys_.size();
    for (std::size_t i = 0; i < count; ++i) {
      if (keys_[i].first == key) keys_.push_back(keys_[i]);
    }
    return *this;
  }
  GgufWriter& erase(const std::string& key) {
    std::erase_if(keys_, [&](const auto& entry) { return entry.first == key; });
    return *this;
  }

  GgufWriter& add_tensor(GgufTensorSpec tensor) {
    tensors_.push_back(std::move(tensor));
    return *this;
  }
  /// Throws std::out_of_range when there is none.
  GgufTensorSpec& tensor(const std::string& name) {
    for (GgufTensorSpec& held : tensors_) {
      if (held.name == name) return held;
    }
    throw std::out_of_range("no tensor " + name);
  }
  GgufWriter& erase_tensor(const std::string& name) {
    std::erase_if(tensors_, [&](const GgufTensorSpec& held) { return held.name == name; });
    return *this;
  }

  /// Everything before the data section, without padding.
  [[nodiscard]] std::string head() const {
    ByteWriter bytes;
    bytes.raw(magic).number(version);
    bytes.number(num_tensors.value_or(tensors_.size())).number(num_keys.value_or(keys_.size()));
    for (const auto& [key, value] : keys_) bytes.text(key).raw(value);
    std::uint64_t next = 0;
    for (const GgufTensorSpec& held : tensors_) {
      bytes.text(held.name).number(static_cast<std::uint32_t>(held.dims.size()));
      for (const std::uint64_t dim : held.dims) bytes.number(dim);
      bytes.number(held.type).number(held.offset.value_or(next));
      next = aligned(next + held.data.size());
    }
    return bytes.bytes();
  }
  [[nodiscard]] std::string bytes() const {
    std::string file = head();
    if (tensors_.empty()) return file;
    for (const GgufTensorSpec& held : tensors_) {
      file.resize(aligned(file.size()), '\0');
      file += held.data;
    }
    return file;
  }

 private:
  [[nodiscard]] std::uint64_t aligned(std::uint64_t size) const {
    return (size + alignment - 1) / alignment * alignment;
  }

  std::vector<std::pair<std::string, std::string>> keys_;
  std::vector<GgufTensorSpec> tensors_;
};

/// A file of this process in the temporary folder, removed at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view content = {}) {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("kvasir_test_" + std::to_string(::getpid()) + "_" + std::to_string(++count));
    write(content);
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::string_view content) const {
    std::ofstream out(path_, std::ios::binary | std::ios::trunc);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
  }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// A file in memory that has a path for this process. Rewriting one on a disk thousands of times
/// waits for the disk.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content = {})
      : fd_(::memfd_create("kvasir_test", MFD_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("memfd_create failed");
    write(content);
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  /// Nothing may have the old content mapped.
  void write(std::string_view content) const {
    const auto size = static_cast<off_t>(content.size());
    if (::ftruncate(fd_, size) != 0 || ::pwrite(fd_, content.data(), content.size(), 0) != size) {
      throw std::runtime_error("cannot write a file in memory");
    }
  }
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace kvasir::test
