// Checks for our own bugs: on in release builds, they print the values and abort. Never for what a
// user sent.
#pragma once

#include <sstream>
#include <string>

namespace kvasir {

/// Prints "file:line: check failed: condition (detail)" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& detail);

}  // namespace kvasir

/// KVASIR_CHECK(free <= total, free << " of " << total): the detail is a stream expression and may
/// be left out.
#define KVASIR_CHECK(condition, ...)                                                     \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::ostringstream kvasir_check_detail;                                            \
      kvasir_check_detail << "" __VA_OPT__(<< __VA_ARGS__);                              \
      ::kvasir::check_failed(__FILE__, __LINE__, #condition, kvasir_check_detail.str()); \
    }                                                                                    \
  } while (false)

/// For hot loops: checked in builds without NDEBUG only.
#ifdef NDEBUG
#define KVASIR_DCHECK(condition, ...) \
  do {                                \
  } while (false)
#else
#define KVASIR_DCHECK(condition, ...) KVASIR_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
