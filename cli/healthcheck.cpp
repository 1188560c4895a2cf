// `kvasir healthcheck`: asks the REST door of this machine whether it is ready, for container
// engines whose images have no curl. Plain sockets with a timeout; one request, one status line.
#include "cli/commands.h"
#include "cli/startup_error.h"
#include "config/cli_flags.h"
#include "config/option_table.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>
#include <netdb.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

namespace kvasir::cli {
namespace {

constexpr int kTimeoutSeconds = 3;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

/// A server that listens everywhere is asked on loopback.
std::string reachable_host(const std::string& host) {
  if (host == "0.0.0.0") return "127.0.0.1";
  if (host == "::") return "::1";
  return host;
}

/// The start of the answer to GET /readyz, or what failed.
Result<std::string> ask(const addrinfo& address, const std::string& host) {
  const Socket socket(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0) return fail(ErrorCode::kInternal, "no socket");
  const timeval timeout{kTimeoutSeconds, 0};
  setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  setsockopt(socket.fd(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  if (connect(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    return fail(ErrorCode::kInternal, "no connection");
  }
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  const std::string request =
      "GET /readyz HTTP/1.1\r\nHost: " + name + "\r\nConnection: close\r\n\r\n";
  if (send(socket.fd(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return fail(ErrorCode::kInternal, "the request was not taken");
  }
  std::string answer;
  char buffer[512];
  while (answer.find("\r\n") == std::string::npos && answer.size() < sizeof(buffer)) {
    const ssize_t count = recv(socket.fd(), buffer, sizeof(buffer), 0);
    if (count <= 0) return fail(ErrorCode::kInternal, "no answer");
    answer.append(buffer, static_cast<std::size_t>(count));
  }
  return answer;
}

int check(const config::LoadedOptions& loaded) {
  const config::ServeOptions& options = loaded.options;
  if (options.http_port == 0) {
    throw StartupError(config::origin_of(loaded, "http-port") +
                       ": 0 names no port to ask; allowed here: 1 to 65535");
  }
  const std::string host = reachable_host(options.host);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(options.http_port).c_str(), &hints, &found) != 0) {
    throw StartupError(config::origin_of(loaded, "host") + ": " + config::quoted(host) +
                       " has no address");
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  const auto answer = ask(*found, host);
  const bool ready = answer && answer->starts_with("HTTP/1.1 200");
  const std::string said =
      !answer ? answer.error().message : answer->substr(0, answer->find("\r\n"));
  std::fprintf(ready ? stdout : stderr, "%s: %s\n", ready ? "ready" : "not ready", said.c_str());
  return ready ? 0 : 1;
}

}  // namespace

Command add_healthcheck(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("healthcheck", "Exit 0 if the daemon on this machine is ready, else 1");
  const auto sources = config::add_option_flags(*command, config::kHealthcheck);
  return [sources] { return check(config::load_options(*sources)); };
}

}  // namespace kvasir::cli
