// The addresses that a REST door listens on: TCP and Unix sockets, bound at start, and connections
// taken from them until told to stop. What a connection is for is the server's.
#pragma once

#include "server/http/transport.h"
#include "server/unix_socket.h"

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvasir::server {

/// One address that is listened on.
class Listener {
 public:
  using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol>;
  using Accepted = std::function<void(Transport::Socket)>;

  explicit Listener(boost::asio::io_context& io);

  /// Errors are thrown (boost::system::system_error).
  void bind_tcp(const boost::asio::generic::stream_protocol::endpoint& endpoint, bool v6_only);
  void bind_unix(const std::string& path);
  [[nodiscard]] std::uint16_t port() const;

  /// Gives every new connection, on a strand of its own, to `accepted` until stop(). Where none can
  /// be taken (no descriptor is left) it pauses: the connections wait in the system's queue.
  void start(Accepted accepted);
  /// From any thread; the file of a Unix socket stays for as long as the listener.
  void stop();
  /// With no other thread left.
  void close();

 private:
  void accept();
  void on_accepted(const boost::system::error_code& ec, Transport::Socket socket);

  boost::asio::io_context& io_;
  Acceptor acceptor_;
  boost::asio::steady_timer pause_;
  bool is_tcp_ = false;
  std::optional<SocketFile> file_;
  Accepted accepted_;
};

using Listeners = std::vector<std::unique_ptr<Listener>>;

/// On all addresses of `host`, all with one port (0: a free one); at least one. Throws
/// std::runtime_error naming `what`, host and port.
[[nodiscard]] Listeners listen_tcp(boost::asio::io_context& io, const std::string& what,
                                   const std::string& host, std::uint16_t port);
/// Throws std::runtime_error naming the path.
[[nodiscard]] std::unique_ptr<Listener> listen_unix(boost::asio::io_context& io,
                                                    const std::string& path);

}  // namespace kvasir::server
