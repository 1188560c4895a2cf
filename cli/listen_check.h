// Asks the system early whether an address can be listened on, so that a taken port is told in a
// line before a large model is loaded. The doors bind for themselves; a port that is taken in
// between is told by them.
#pragma once

#include <cstdint>
#include <string>

namespace kvasir::cli {

/// Throws StartupError naming `option`, host and port. Port 0 checks the host only.
void check_listen(const std::string& host, std::uint32_t port, const std::string& option);

}  // namespace kvasir::cli
