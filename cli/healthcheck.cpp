// `kvasir healthcheck`: asks the REST door of this machine whether it is ready, for container
// engines whose images have no curl. Over the Unix socket when there is one, else over the port,
// with TLS when the daemon has it; one request, one status line. The certificate is not judged:
// nothing secret is sent, and it need not name this machine's loopback address.
#include "cli/commands.h"
#include "cli/startup_error.h"
#include "config/cli_flags.h"
#include "config/option_table.h"

#include <CLI/CLI.hpp>

#include <array>
#include <csignal>
#include <cstdio>
#include <memory>
#include <netdb.h>
#include <openssl/ssl.h>
#include <span>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
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

/// Sends and receives, in clear or with TLS.
class Stream {
 public:
  explicit Stream(const Socket& socket) : fd_(socket.fd()) {}
  ~Stream() {
    SSL_free(tls_);
    SSL_CTX_free(context_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] bool begin_tls() {
    context_ = SSL_CTX_new(TLS_client_method());
    tls_ = context_ == nullptr ? nullptr : SSL_new(context_);
    return tls_ != nullptr && SSL_set_fd(tls_, fd_) == 1 && SSL_connect(tls_) == 1;
  }
  [[nodiscard]] bool send(const std::string& bytes) {
    const auto size = static_cast<int>(bytes.size());
    if (tls_ != nullptr) return SSL_write(tls_, bytes.data(), size) == size;
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == size;
  }
  /// Bytes received; 0 or less at the end and for a failure.
  [[nodiscard]] int receive(std::span<char> buffer) {
    const auto size = static_cast<int>(buffer.size());
    if (tls_ != nullptr) return SSL_read(tls_, buffer.data(), size);
    return static_cast<int>(recv(fd_, buffer.data(), buffer.size(), 0));
  }

 private:
  int fd_;
  SSL_CTX* context_ = nullptr;
  SSL* tls_ = nullptr;
};

struct Target {
  const sockaddr* address = nullptr;
  socklen_t address_size = 0;
  std::string name;  // of the Host field
  bool has_tls = false;
};

/// The start of the answer to GET /readyz, or what failed.
Result<std::string> ask(const Target& target) {
  const Socket socket(::socket(target.address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0) return fail(ErrorCode::kInternal, "no socket");
  const timeval timeout{kTimeoutSeconds, 0};
  setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  setsockopt(socket.fd(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  if (connect(socket.fd(), target.address, target.address_size) != 0) {
    return fail(ErrorCode::kInternal, "no connection");
  }
  Stream stream(socket);
  if (target.has_tls && !stream.begin_tls()) return fail(ErrorCode::kInternal, "no TLS");
  if (!stream.send("GET /readyz HTTP/1.1\r\nHost: " + target.name +
                   "\r\nConnection: close\r\n\r\n")) {
    return fail(ErrorCode::kInternal, "the request was not taken");
  }
  std::string answer;
  std::array<char, 512> buffer{};
  while (answer.find("\r\n") == std::string::npos && answer.size() < buffer.size()) {
    const int count = stream.receive(buffer);
    if (count <= 0) return fail(ErrorCode::kInternal, "no answer");
    answer.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return answer;
}

Result<std::string> ask_socket(const config::LoadedOptions& loaded) {
  const std::string& path = loaded.options.http_socket;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    throw StartupError(config::origin_of(loaded, "http-socket") + ": " + config::quoted(path) +
                       " is too long for a Unix socket");
  }
  path.copy(address.sun_path, path.size());
  return ask({.address = reinterpret_cast<const sockaddr*>(&address),
              .address_size = sizeof(address),
              .name = "localhost"});
}

Result<std::string> ask_port(const config::LoadedOptions& loaded) {
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
  return ask({.address = found->ai_addr,
              .address_size = found->ai_addrlen,
              .name = host.find(':') == std::string::npos ? host : "[" + host + "]",
              .has_tls = !options.tls_cert_path.empty()});
}

int check(const config::LoadedOptions& loaded) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
  const auto answer = loaded.options.http_socket.empty() ? ask_port(loaded) : ask_socket(loaded);
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
