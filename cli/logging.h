// Log lines on stderr: text, or one JSON object a line. Other folders log through spdlog's default
// logger, which is set here; nothing that a client sent can break a line or forge one, and nobody
// waits for a log that is not read.
#pragma once

#include <string>
#include <string_view>

namespace kvasir::cli {

/// `level` and `format` as in the options log-level and log-format. Lines are written to `fd` by
/// whoever logs, so that the last ones are there whatever ends the process; those that would have
/// to wait are dropped, and the next line says how many.
void start_logging(const std::string& level, const std::string& format, int fd = 2);

/// The inside of a JSON string: quotes, backslashes and control characters escaped, bytes that are
/// no UTF-8 as U+FFFD.
[[nodiscard]] std::string json_escaped(std::string_view text);
/// One line: control characters as \xNN.
[[nodiscard]] std::string line_escaped(std::string_view text);

}  // namespace kvasir::cli
