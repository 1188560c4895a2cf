#include "cli/bench_progress.h"

#include <algorithm>
#include <unistd.h>

namespace kvasir::cli {
namespace {

constexpr std::size_t kBarWidth = 30;
constexpr const char* kEraseLine = "\r\x1b[K";

}  // namespace

BenchProgress::BenchProgress(std::size_t num_steps, int fd)
    : num_steps_(std::max<std::size_t>(1, num_steps)), fd_(fd), shown_(isatty(fd) == 1) {}

BenchProgress::~BenchProgress() {
  if (shown_) write(kEraseLine);
}

void BenchProgress::step(const std::string& what) {
  if (!shown_) return;
  const std::size_t done = std::min(num_started_++, num_steps_);
  const std::size_t filled = kBarWidth * done / num_steps_;
  std::string line = kEraseLine;
  line += '[';
  line.append(filled, '#').append(kBarWidth - filled, '.').append("] ").append(what);
  write(line);
}

void BenchProgress::write(const std::string& text) const {
  // A terminal that takes nothing misses a picture and no more.
  [[maybe_unused]] const ssize_t written = ::write(fd_, text.data(), text.size());
}

}  // namespace kvasir::cli
