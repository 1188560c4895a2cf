// A start that cannot go on: a model, a port or a limit is at fault. It ends in main, as one line
// and exit code 2.
#pragma once

#include "core/result.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace kvasir::cli {

class StartupError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The value, or its error as an exception. Before "ready" only.
/// The message opens with `origin`: the place that named what is at fault.
template <typename T>
T value_or_throw(Result<T> result, const std::string& origin) {
  if (!result) throw StartupError(origin + ": " + result.error().message);
  return std::move(*result);
}
inline void value_or_throw(Result<void> result, const std::string& origin) {
  if (!result) throw StartupError(origin + ": " + result.error().message);
}

}  // namespace kvasir::cli
