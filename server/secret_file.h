// Reads a small file of the operator's that holds secrets: keys, certificates. A regular file only,
// because opening a pipe could wait for ever; what the bytes mean is the caller's.
#pragma once

#include "core/result.h"

#include <cstddef>
#include <string>

namespace kvasir::server {

/// The whole file. Errors: kInvalidConfig, naming the path and what is wrong with it: not there,
/// not to be read, no regular file, more than `max_bytes`.
[[nodiscard]] Result<std::string> read_secret_file(const std::string& path, std::size_t max_bytes);
/// In double quotes, control characters and quotes as '?'.
[[nodiscard]] std::string shown_path(const std::string& path);
/// kInvalidConfig that says `what` of the file.
[[nodiscard]] Error secret_file_error(const std::string& path, const std::string& what);
/// Overwrites the bytes, then empties the string.
void wipe(std::string& secret);

}  // namespace kvasir::server
