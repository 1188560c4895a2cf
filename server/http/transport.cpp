#include "server/http/transport.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <utility>

namespace kvasir::server {
namespace {

namespace asio = boost::asio;

/// As much as one TLS record holds, so that none of a record waits inside of OpenSSL.
constexpr std::size_t kReadBytes = 16U << 10U;
/// Most bytes of one attempt: OpenSSL counts them in an int, and writes less anyway.
constexpr std::size_t kWriteBytes = 1U << 30U;
/// The system doubles it: a client that never reads holds so much of it and no more.
constexpr int kSendBufferBytes = 64 << 10;

// OpenSSL's own socket BIO writes without MSG_NOSIGNAL, so that a client that left would raise
// SIGPIPE, and it keeps the number of a descriptor that may have been closed and given away.
int descriptor_of(BIO* bio) {
  return static_cast<Transport::Socket*>(BIO_get_data(bio))->native_handle();
}

int moved(BIO* bio, ssize_t bytes, bool reading) {
  BIO_clear_retry_flags(bio);
  if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    if (reading) {
      BIO_set_retry_read(bio);
    } else {
      BIO_set_retry_write(bio);
    }
  }
  return static_cast<int>(bytes);
}

int bio_write(BIO* bio, const char* bytes, int count) {
  return moved(
      bio, ::send(descriptor_of(bio), bytes, static_cast<std::size_t>(count), MSG_NOSIGNAL), false);
}

int bio_read(BIO* bio, char* bytes, int count) {
  return moved(bio, ::recv(descriptor_of(bio), bytes, static_cast<std::size_t>(count), 0), true);
}

long bio_control(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

/// Null when memory is at its end. Made once, never freed.
const BIO_METHOD* socket_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "kvasir socket");
    if (made != nullptr) {
      BIO_meth_set_write(made, bio_write);
      BIO_meth_set_read(made, bio_read);
      BIO_meth_set_ctrl(made, bio_control);
    }
    return made;
  }();
  return method;
}

}  // namespace

void Transport::FreeSsl::operator()(SSL* ssl) const { SSL_free(ssl); }

Transport::Transport(Socket socket, std::shared_ptr<SSL_CTX> tls)
    : socket_(std::move(socket)), executor_(socket_.get_executor()), tls_context_(std::move(tls)) {
  boost::system::error_code ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
}

Transport::~Transport() = default;

void Transport::wait(Need need, Handler done) {
  socket_.async_wait(
      need == Need::kWritable ? asio::socket_base::wait_write : asio::socket_base::wait_read,
      [done = std::move(done)](const boost::system::error_code& ec) { done(ec); });
}

Transport::Attempt Transport::plain_attempt(const boost::system::error_code& ec, std::size_t bytes,
                                            Need need) const {
  if (ec == asio::error::would_block || ec == asio::error::try_again ||
      ec == asio::error::interrupted) {
    return {.need = need, .error = {}, .bytes = 0};
  }
  return {.need = Need::kNothing, .error = ec, .bytes = bytes};
}

Transport::Attempt Transport::tls_attempt(int result) const {
  if (result > 0)
    return {.need = Need::kNothing, .error = {}, .bytes = static_cast<std::size_t>(result)};
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return {.need = Need::kReadable, .error = {}, .bytes = 0};
    case SSL_ERROR_WANT_WRITE:
      return {.need = Need::kWritable, .error = {}, .bytes = 0};
    default:
      return {.need = Need::kNothing, .error = asio::error::eof, .bytes = 0};
  }
}

// ---- TLS's beginning ----

void Transport::handshake(Handler done) {
  if (!ssl_) {
    ssl_.reset(SSL_new(tls_context_.get()));
    BIO* bio = ssl_ && socket_method() != nullptr ? BIO_new(socket_method()) : nullptr;
    if (bio == nullptr) throw std::bad_alloc();
    BIO_set_data(bio, &socket_);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl_.get(), bio, bio);
    SSL_set_accept_state(ssl_.get());
  }
  ERR_clear_error();
  const Attempt attempt = tls_attempt(SSL_do_handshake(ssl_.get()));
  if (attempt.need == Need::kNothing) {
    asio::post(executor_, [done = std::move(done), error = attempt.error] { done(error); });
    return;
  }
  wait(attempt.need, [this, done = std::move(done)](const boost::system::error_code& ec) {
    if (ec || !ssl_) return done(asio::error::operation_aborted);
    handshake(done);
  });
}

// ---- reading and writing ----

Transport::Attempt Transport::read_now(std::span<char> buffer) {
  if (!socket_.is_open())
    return {.need = Need::kNothing, .error = asio::error::operation_aborted, .bytes = 0};
  if (ssl_) {
    ERR_clear_error();
    return tls_attempt(SSL_read(ssl_.get(), buffer.data(), static_cast<int>(buffer.size())));
  }
  boost::system::error_code ec;
  const std::size_t bytes = socket_.read_some(asio::buffer(buffer.data(), buffer.size()), ec);
  return plain_attempt(ec, bytes, Need::kReadable);
}

void Transport::read(ReadHandler done) {
  auto attempt = [this, done = std::move(done)](const boost::system::error_code& ec) {
    if (ec) return done(ec, {});
    std::array<char, kReadBytes> buffer;  // NOLINT(*-member-init): only what was read is looked at
    const Attempt result = read_now(buffer);
    if (result.need == Need::kNothing)
      return done(result.error, std::string_view(buffer.data(), result.bytes));
    wait(result.need, [this, done](const boost::system::error_code& late) {
      if (late) return done(late, {});
      read(done);
    });
  };
  if (ssl_ && SSL_pending(ssl_.get()) > 0) {
    asio::post(executor_, [attempt = std::move(attempt)] { attempt({}); });
  } else {
    wait(Need::kReadable, std::move(attempt));
  }
}

Transport::Attempt Transport::write_now(std::string_view bytes) {
  if (!socket_.is_open())
    return {.need = Need::kNothing, .error = asio::error::operation_aborted, .bytes = 0};
  if (ssl_) {
    ERR_clear_error();
    return tls_attempt(
        SSL_write(ssl_.get(), bytes.data(), static_cast<int>(std::min(bytes.size(), kWriteBytes))));
  }
  boost::system::error_code ec;
  const std::size_t written = socket_.write_some(asio::buffer(bytes.data(), bytes.size()), ec);
  return plain_attempt(ec, written, Need::kWritable);
}

void Transport::write(std::string_view bytes, WriteHandler done) {
  const Attempt attempt = write_now(bytes);
  if (attempt.need == Need::kNothing) {
    asio::post(executor_,
               [done = std::move(done), attempt] { done(attempt.error, attempt.bytes); });
    return;
  }
  wait(attempt.need,
       [this, bytes, done = std::move(done)](const boost::system::error_code& ec) mutable {
         if (ec) return done(ec, 0);
         write(bytes, std::move(done));
       });
}

// ---- ending ----

void Transport::shut_send() {
  if (ssl_) SSL_shutdown(ssl_.get());  // one attempt: what does not fit is not waited for
  ssl_.reset();
  boost::system::error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_send, ignored);
}

void Transport::close() {
  ssl_.reset();
  boost::system::error_code ignored;
  socket_.close(ignored);
}

}  // namespace kvasir::server
