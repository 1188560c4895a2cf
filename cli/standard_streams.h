// The three standard streams of a command: there at its start, and written out at its end. What
// goes over them is the commands' business.
#pragma once

namespace kvasir::cli {

/// Puts /dev/null behind each of the three descriptors that is closed, so that no model file or
/// socket gets its number. Writing to a standard output that was closed still fails.
void open_standard_streams();

/// Writes out what standard output still holds. Throws std::runtime_error when anything that was
/// printed could not be written (full disk, closed output). Call it before a command says that it
/// succeeded.
void finish_output();

}  // namespace kvasir::cli
