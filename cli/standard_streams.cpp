// std::cout is synchronised with stdio, so that stdout's buffer is the only one.
#include "cli/standard_streams.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <iostream>
#include <stdexcept>
#include <string>
#include <unistd.h>

namespace kvasir::cli {

void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    // open takes the lowest number, which is fd. Read-only makes writes to standard output fail,
    // as they would have.
    if (open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) != fd) return;
  }
}

void finish_output() {
  errno = 0;
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::cout.good() && std::ferror(stdout) == 0) return;
  const std::string why = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  throw std::runtime_error("standard output cannot be written" + why);
}

}  // namespace kvasir::cli
