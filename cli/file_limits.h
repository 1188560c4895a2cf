// How many files the process may have open: every connection of a door is one. What to do with a
// limit that is too low is the caller's.
#pragma once

#include <cstdint>

namespace kvasir::cli {

/// Raises the soft limit to the hard one, as far as the system lets us; returns what it is then.
std::uint64_t raise_file_limit();

}  // namespace kvasir::cli
