// A regular file mapped read-only. Nothing is known here of what is in it. A file that someone
// shortens while it is mapped ends the process with SIGBUS at the next read past its end: model
// files are to be replaced, not rewritten.
#pragma once

#include "core/result.h"

#include <cstddef>
#include <span>
#include <string>

namespace kvasir::runtime {

class MappedFile {
 public:
  /// Never blocks, whatever the path names. An empty file is an empty span.
  /// Errors: kInvalidModelFile naming the path and the cause (missing, no permission, folder, FIFO,
  /// ...).
  [[nodiscard]] static Result<MappedFile> open(const std::string& path);
  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  /// Takes the whole pages within `part` out of this process's memory; they are read from the file
  /// again when touched. `part` lies in bytes().
  void release_pages(std::span<const std::byte> part) const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace kvasir::runtime
