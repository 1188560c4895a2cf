// A bar on stderr for whoever watches; where stderr is no terminal, nothing at all.
#pragma once

#include <cstddef>
#include <string>

namespace kvasir::cli {

class BenchProgress {
 public:
  /// `num_steps` calls of step() make a full bar. Writes to `fd` only when that is a terminal.
  explicit BenchProgress(std::size_t num_steps, int fd = 2);
  /// Takes the bar off the screen.
  ~BenchProgress();
  BenchProgress(const BenchProgress&) = delete;
  BenchProgress& operator=(const BenchProgress&) = delete;

  /// `what` is being done now; what came before is done.
  void step(const std::string& what);

 private:
  void write(const std::string& text) const;

  std::size_t num_steps_;
  std::size_t num_started_ = 0;
  int fd_;
  bool shown_;
};

}  // namespace kvasir::cli
