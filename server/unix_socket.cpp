#include "server/unix_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

namespace kvasir::server {
namespace {

tl::unexpected<Error> unusable(const std::string& path, const std::string& why) {
  return fail(ErrorCode::kInvalidConfig, "the Unix socket " + path + " cannot be used: " + why);
}

/// Whether a socket takes connections; errno says why not.
bool is_listened_on(const sockaddr_un& address) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  const bool connected =
      ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno == EAGAIN;  // its queue is full
  const int why = errno;
  ::close(fd);
  errno = why;
  return connected;
}

}  // namespace

Result<void> clear_socket_path(const std::string& path) {
  sockaddr_un address{};
  if (path.size() >= sizeof address.sun_path) {
    return unusable(
        path, "it must be shorter than " + std::to_string(sizeof address.sun_path) + " bytes");
  }
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return {};
    return unusable(path, std::strerror(errno));
  }
  if (!S_ISSOCK(found.st_mode)) return unusable(path, "something else is there");
  address.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), std::begin(address.sun_path));
  if (is_listened_on(address)) return unusable(path, "another process listens on it");
  if (errno != ECONNREFUSED) return unusable(path, std::strerror(errno));
  if (::unlink(path.c_str()) != 0) return unusable(path, std::strerror(errno));
  return {};
}

SocketFile::SocketFile(std::string path) : path_(std::move(path)) {
  ::chmod(path_.c_str(), S_IRUSR | S_IWUSR | S_IRGRP | S_IWGRP);
  struct stat made {};
  if (::stat(path_.c_str(), &made) == 0) {
    device_ = made.st_dev;
    inode_ = made.st_ino;
  }
}

SocketFile::~SocketFile() {
  struct stat found {};
  if (::lstat(path_.c_str(), &found) == 0 && found.st_dev == device_ && found.st_ino == inode_)
    ::unlink(path_.c_str());
}

}  // namespace kvasir::server
