// The file of a Unix socket that is listened on: where it may be made, and that it goes with its
// owner. Accepting is the listener's.
#pragma once

#include "core/result.h"

#include <cstdint>
#include <string>

namespace kvasir::server {

/// Makes room for a socket at `path`: nothing is there afterwards. Only a socket that nobody
/// listens on any more is removed. Errors: kInvalidConfig naming the path.
[[nodiscard]] Result<void> clear_socket_path(const std::string& path);

/// The file of a bound socket, removed at its end unless another one took its place.
class SocketFile {
 public:
  /// Right after the bind; its mode becomes 0660, before the listen lets anybody in.
  explicit SocketFile(std::string path);
  ~SocketFile();
  SocketFile(const SocketFile&) = delete;
  SocketFile& operator=(const SocketFile&) = delete;

 private:
  std::string path_;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
};

}  // namespace kvasir::server
