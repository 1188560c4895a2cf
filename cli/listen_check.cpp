// One bind and one listen on a socket of its own, closed at once.
#include "cli/listen_check.h"

#include "cli/startup_error.h"
#include "config/load.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kvasir::cli {

void check_listen(const ListenAddress& address) {
  const std::string& host = address.host;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int unknown =
      getaddrinfo(host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (unknown != 0) {
    throw StartupError(address.host_origin + ": " + config::quoted(host) + ": " +
                       gai_strerror(unknown) + "; allowed: an address or name of this machine");
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  const int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
  if (fd < 0) return;  // the doors will say it
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Listening too: with SO_REUSEADDR two sockets may bind one port as long as neither listens.
  const bool taken = bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1) != 0;
  const int why = errno;
  close(fd);
  if (taken) {
    const bool host_is_at_fault = why == EADDRNOTAVAIL || address.port == 0;
    throw StartupError((host_is_at_fault ? address.host_origin : address.port_origin) +
                       ": cannot listen on " + host + ":" + std::to_string(address.port) + ": " +
                       std::strerror(why) + "; allowed: a free port of this machine");
  }
}

}  // namespace kvasir::cli
