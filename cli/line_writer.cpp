// O_NONBLOCK would be shared with whoever else has the pipe (a shell, a test), hence poll before
// each write of at most PIPE_BUF bytes: a pipe that polls as writable takes so many without
// waiting. Two processes that fill one pipe's last page between each other's poll and write may
// still wait.
#include "cli/line_writer.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <poll.h>
#include <unistd.h>

namespace kvasir::cli {
namespace {

bool takes_more(int fd) {
  pollfd polled{.fd = fd, .events = POLLOUT, .revents = 0};
  int count = 0;
  do {
    count = poll(&polled, 1, 0);
  } while (count < 0 && errno == EINTR);
  return count == 1 && polled.revents == POLLOUT;
}

/// Bytes that were taken.
std::size_t put(int fd, std::string_view text) {
  std::size_t done = 0;
  while (done < text.size() && takes_more(fd)) {
    const std::size_t piece = std::min<std::size_t>(text.size() - done, PIPE_BUF);
    const ssize_t count = ::write(fd, text.data() + done, piece);
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (count == 0 || errno != EINTR) {
      break;
    }
  }
  return done;
}

}  // namespace

bool LineWriter::write(std::string_view line) {
  if (cut_) {
    if (put(fd_, "\n") == 0) return false;
    cut_ = false;
  }
  const std::size_t done = put(fd_, line);
  cut_ = done != 0 && done < line.size();
  return done == line.size();
}

}  // namespace kvasir::cli
