#include "server/secret_file.h"

#include <cerrno>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace kvasir::server {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

std::string kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

tl::unexpected<Error> refuse(const std::string& path, const std::string& what) {
  return tl::unexpected<Error>(secret_file_error(path, what));
}

tl::unexpected<Error> refuse_errno(const std::string& path, int error) {
  return refuse(path, "cannot be read: " + std::generic_category().message(error));
}

}  // namespace

Result<std::string> read_secret_file(const std::string& path, std::size_t max_bytes) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return refuse(path, "is no path of a file");
  }
  // Without O_NONBLOCK, opening a FIFO waits for its writer.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return refuse_errno(path, errno);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return refuse_errno(path, errno);
  if (!S_ISREG(status.st_mode)) {
    return refuse(path, "is " + kind_of(status.st_mode) + " and no regular file");
  }
  std::string bytes(max_bytes + 1, '\0');  // not by the announced size, which may be a lie
  std::size_t count = 0;
  while (count < bytes.size()) {
    const ssize_t got = read(file.get(), bytes.data() + count, bytes.size() - count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refuse_errno(path, errno);
    if (got == 0) break;
    count += static_cast<std::size_t>(got);
  }
  if (count > max_bytes) {
    wipe(bytes);
    return refuse(path, "is larger than " + std::to_string(max_bytes) + " bytes");
  }
  bytes.resize(count);
  return bytes;
}

std::string shown_path(const std::string& path) {
  std::string shown = "\"";
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    shown += (byte < 0x20 || byte == 0x7F || c == '"') ? '?' : c;
  }
  return shown + "\"";
}

Error secret_file_error(const std::string& path, const std::string& what) {
  return {ErrorCode::kInvalidConfig, shown_path(path) + " " + what, {}};
}

void wipe(std::string& secret) {
  OPENSSL_cleanse(secret.data(), secret.size());
  secret.clear();
}

}  // namespace kvasir::server
