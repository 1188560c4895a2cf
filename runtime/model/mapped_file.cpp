#include "runtime/model/mapped_file.h"

#include "core/check.h"
#include "runtime/model/printable.h"

#include <cerrno>
#include <cstddef>
#include <fcntl.h>
#include <span>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace kvasir::runtime {
namespace {

constexpr std::size_t kMaxShownPathBytes = 400;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) {
    return "a folder";
  }
  if (S_ISFIFO(mode)) {
    return "a FIFO";
  }
  if (S_ISSOCK(mode)) {
    return "a socket";
  }
  return "a device";
}

tl::unexpected<Error> refuse(const std::string& path, const std::string& why) {
  return fail(ErrorCode::kInvalidModelFile, printable(path, kMaxShownPathBytes) + ": " + why);
}

tl::unexpected<Error> refuse_errno(const std::string& path, const std::string& what, int error) {
  return refuse(path, what + ": " + std::generic_category().message(error));
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  if (path.empty()) {
    return fail(ErrorCode::kInvalidModelFile, "the path of the model file is empty");
  }
  if (path.find('\0') != std::string::npos) {
    return refuse(path, "the path has a NUL character");
  }
  // Without O_NONBLOCK, opening a FIFO waits for its writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    return refuse_errno(path, "cannot open the model file", errno);
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    return refuse_errno(path, "cannot read the status of the model file", errno);
  }
  if (!S_ISREG(status.st_mode)) {
    return refuse(
        path, std::string("is ") + kind_of(status.st_mode) + ", a model has to be a regular file");
  }
  if (status.st_size == 0) {
    return MappedFile();
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) {
    return refuse_errno(path, "cannot map the model file", errno);
  }
  return MappedFile(std::span(static_cast<const std::byte*>(address), size));
}

void MappedFile::release_pages(std::span<const std::byte> part) const {
  if (part.empty()) return;
  KVASIR_CHECK(part.data() >= bytes_.data());
  KVASIR_CHECK(part.data() + part.size() <= bytes_.data() + bytes_.size());
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(part.data() + part.size()) / page * page;
  if (begin >= end) return;
  // The mapping is private and was never written, so that no byte is lost.
  (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    // munmap takes void*, though it does not write.
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace kvasir::runtime
