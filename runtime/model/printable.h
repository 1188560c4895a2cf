// Text from an untrusted file made safe for one line of a log, a terminal or an error. It does not
// quote.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvasir::runtime {

/// Valid UTF-8 stays as it is; control characters (C0, DEL, C1, line and paragraph separators,
/// bidirectional controls), backslashes and bytes that are no UTF-8 become \n, \t, \\ or \xNN. Past
/// `max_bytes` of input the text is cut between characters and "..." is put behind it.
[[nodiscard]] std::string printable(std::string_view text, std::size_t max_bytes = 80);

}  // namespace kvasir::runtime
