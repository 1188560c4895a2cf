// How a test's client reaches the door: a plain connection over TCP or a Unix socket, or one over
// TLS. Bytes only; HTTP is the Client's (test_server.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace kvasir::server::testing {

/// Ten seconds without a byte are an error (EAGAIN), whatever is under it.
class Wire {
 public:
  explicit Wire(int descriptor) : descriptor_(descriptor) {}
  virtual ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// As send(2) and recv(2).
  [[nodiscard]] virtual long send(std::string_view bytes);
  [[nodiscard]] virtual long receive(std::span<char> buffer);
  [[nodiscard]] int descriptor() const { return descriptor_; }
  /// Nothing is said to the other side but what the system says.
  void close();

 private:
  int descriptor_;
};

struct TlsClientOptions {
  std::string protocols;  // by ALPN, each after a byte with its length; empty: not asked for
  int max_version = 0;    // TLS1_1_VERSION, ...; 0: OpenSSL's
};

/// All throw std::runtime_error when the connection cannot be made.
[[nodiscard]] std::unique_ptr<Wire> tcp_wire(std::uint16_t port, int receive_buffer_bytes = 0);
[[nodiscard]] std::unique_ptr<Wire> unix_wire(const std::string& path);
/// Any certificate will do.
[[nodiscard]] std::unique_ptr<Wire> tls_wire(std::uint16_t port,
                                             const TlsClientOptions& options = {});

/// What the handshake of tls_wire() came to: the certificate, the version, the
/// protocol ("" for none).
struct TlsFacts {
  long serial = 0;
  std::string version;
  std::string protocol;
};
[[nodiscard]] TlsFacts tls_facts(const Wire& wire);

struct TestPair {
  std::string certificate;
  std::string key;
};
/// A self-signed pair, PEM.
[[nodiscard]] TestPair make_test_pair(long serial);

}  // namespace kvasir::server::testing
