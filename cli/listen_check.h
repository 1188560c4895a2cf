// Asks the system early whether an address can be listened on, so that a taken port is told in a
// line before a large model is loaded. The doors bind for themselves; a port that is taken in
// between is told by them.
#pragma once

#include <cstdint>
#include <string>

namespace kvasir::cli {

/// What to listen on, and where both parts were written (see config::origin_of).
struct ListenAddress {
  std::string host;
  std::string host_origin;
  std::uint32_t port = 0;
  std::string port_origin;
};

/// Throws StartupError naming the origin, host and port. Port 0 checks the host only.
void check_listen(const ListenAddress& address);

}  // namespace kvasir::cli
