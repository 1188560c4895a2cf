// The bytes of one connection, the same over TCP, a Unix socket and TLS. It reads and writes
// without blocking and waits without a buffer, so that an idle connection costs little; what the
// bytes mean, and how long anything may take, is the session's.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <openssl/types.h>
#include <span>
#include <string_view>

namespace kvasir::server {

/// All members run on the strand of the socket. What a handler refers to must keep the transport; a
/// handler always comes from the strand, never from inside the call that was given it.
class Transport {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  using Handler = std::function<void(const boost::system::error_code&)>;
  /// `bytes` live until the handler returns.
  using ReadHandler = std::function<void(const boost::system::error_code&, std::string_view bytes)>;
  using WriteHandler = std::function<void(const boost::system::error_code&, std::size_t bytes)>;

  /// `tls` is null for plain bytes; it may be replaced by another one for later connections.
  Transport(Socket socket, std::shared_ptr<SSL_CTX> tls);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  [[nodiscard]] bool is_tls() const { return tls_context_ != nullptr; }
  [[nodiscard]] const boost::asio::any_io_executor& executor() const { return executor_; }

  /// The server's side of TLS; before any read or write. Plain connections have none.
  void handshake(Handler done);
  /// At least one byte, or why there are none: the client's end is asio::error::eof, and so is what
  /// breaks TLS. One at a time.
  void read(ReadHandler done);
  /// Some of `bytes`, at least one; they must stay where they are until the handler. One at a time.
  void write(std::string_view bytes, WriteHandler done);
  /// Tells the client that nothing more comes. What it still sends is from now on read as it is.
  void shut_send();
  /// Handlers that wait are given an error.
  void close();

 private:
  enum class Need { kNothing, kReadable, kWritable };
  /// What one attempt came to. With a need, nothing was moved and it must be made again.
  struct Attempt {
    Need need = Need::kNothing;
    boost::system::error_code error;
    std::size_t bytes = 0;
  };
  struct FreeSsl {
    void operator()(SSL* ssl) const;
  };

  void wait(Need need, Handler done);
  [[nodiscard]] Attempt read_now(std::span<char> buffer);
  [[nodiscard]] Attempt write_now(std::string_view bytes);
  [[nodiscard]] Attempt plain_attempt(const boost::system::error_code& ec, std::size_t bytes,
                                      Need need) const;
  [[nodiscard]] Attempt tls_attempt(int result) const;

  Socket socket_;
  boost::asio::any_io_executor executor_;
  std::shared_ptr<SSL_CTX> tls_context_;
  std::unique_ptr<SSL, FreeSsl> ssl_;  // null: plain, or not begun, or ended
};

}  // namespace kvasir::server
