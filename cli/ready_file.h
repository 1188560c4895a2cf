// The file that tells scripts and tests which ports a daemon got. It is there, whole, exactly while
// requests are served.
#pragma once

#include <cstdint>
#include <string>

namespace kvasir::cli {

class ReadyFile {
 public:
  /// Writes {"http_port":N,"grpc_port":N,"pid":N} beside `path` and renames it into place. Throws
  /// StartupError.
  ReadyFile(std::string path, std::uint16_t http_port, std::uint16_t grpc_port, std::int64_t pid);
  /// Removes it.
  ~ReadyFile();
  ReadyFile(const ReadyFile&) = delete;
  ReadyFile& operator=(const ReadyFile&) = delete;

 private:
  std::string path_;
};

}  // namespace kvasir::cli
