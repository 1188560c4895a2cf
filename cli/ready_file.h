// The file that tells scripts and tests which ports a daemon got. It is there, whole, exactly while
// requests are served.
#pragma once

#include "cli/named_path.h"

#include <cstdint>

namespace kvasir::cli {

/// Throws StartupError when a ready file could not be made there: for the time before a model is
/// loaded.
void check_ready_file(const NamedPath& file);

class ReadyFile {
 public:
  /// Writes {"http_port":N,"grpc_port":N,"pid":N} beside the path and renames it into place. Throws
  /// StartupError.
  ReadyFile(NamedPath file, std::uint16_t http_port, std::uint16_t grpc_port, std::int64_t pid);
  /// Removes it.
  ~ReadyFile();
  ReadyFile(const ReadyFile&) = delete;
  ReadyFile& operator=(const ReadyFile&) = delete;

 private:
  NamedPath file_;
};

}  // namespace kvasir::cli
