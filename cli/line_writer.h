// Lines to a file descriptor that may be a pipe nobody reads: a line that cannot be written at once
// is dropped, since a daemon that waits for its log serves nobody.
#pragma once

#include <string_view>

namespace kvasir::cli {

/// Threads: one at a time; the caller locks.
class LineWriter {
 public:
  explicit LineWriter(int fd) : fd_(fd) {}
  /// `line` ends in a line end. False when not all of it was taken, or the descriptor is closed;
  /// never waits for a reader. A line cut in the middle is ended before the next one starts.
  [[nodiscard]] bool write(std::string_view line);

 private:
  int fd_;
  bool cut_ = false;
};

}  // namespace kvasir::cli
