// `kvasir inspect MODEL`: what a model file has and what this build can do with it. Nothing is
// loaded to be served.
#pragma once

#include <iosfwd>
#include <string>

namespace kvasir::cli {

/// Writes a report of the GGUF file to standard output, as text or as one JSON object; problems of
/// the file go to standard error as one line. Returns the exit code: 0 when the file could be read
/// (whether or not this build can serve it, which the report says), 2 when it could not.
int run_inspect(const std::string& path, bool json);
/// The same with the streams named, for tests.
int run_inspect(const std::string& path, bool json, std::ostream& out, std::ostream& errors);

}  // namespace kvasir::cli
