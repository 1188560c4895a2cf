#include "tests/server/wire.h"

#include <algorithm>
#include <arpa/inet.h>
#include <csignal>
#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdexcept>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

namespace kvasir::server::testing {
namespace {

int limited_socket(int family) {
  const int descriptor = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit{.tv_sec = 10, .tv_usec = 0};
  ::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  return descriptor;
}

class TlsWire final : public Wire {
 public:
  TlsWire(int descriptor, const TlsClientOptions& options)
      : Wire(descriptor), context_(SSL_CTX_new(TLS_client_method())) {
    std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets that may be closed
    if (options.max_version != 0) {
      // Old versions need weaker signatures than OpenSSL takes by itself.
      SSL_CTX_set_security_level(context_, 0);
      SSL_CTX_set_min_proto_version(context_, 0);
      SSL_CTX_set_max_proto_version(context_, options.max_version);
    }
    ssl_ = SSL_new(context_);
    if (!options.protocols.empty()) {
      SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(options.protocols.data()),
                          static_cast<unsigned>(options.protocols.size()));
    }
    SSL_set_fd(ssl_, descriptor);
    connected_ = SSL_connect(ssl_) == 1;
  }
  ~TlsWire() override {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  [[nodiscard]] bool connected() const { return connected_; }
  [[nodiscard]] long send(std::string_view bytes) override {
    return SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()));
  }
  [[nodiscard]] long receive(std::span<char> buffer) override {
    return SSL_read(ssl_, buffer.data(), static_cast<int>(buffer.size()));
  }
  [[nodiscard]] TlsFacts facts() const {
    TlsFacts facts{.serial = 0, .version = SSL_get_version(ssl_), .protocol = {}};
    if (X509* certificate = SSL_get1_peer_certificate(ssl_); certificate != nullptr) {
      facts.serial = ASN1_INTEGER_get(X509_get0_serialNumber(certificate));
      X509_free(certificate);
    }
    const unsigned char* name = nullptr;
    unsigned bytes = 0;
    SSL_get0_alpn_selected(ssl_, &name, &bytes);
    if (name != nullptr) facts.protocol.assign(reinterpret_cast<const char*>(name), bytes);
    return facts;
  }

 private:
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
  bool connected_ = false;
};

int connected_tcp(std::uint16_t port, int receive_buffer_bytes) {
  const int descriptor = limited_socket(AF_INET);
  if (receive_buffer_bytes > 0) {
    ::setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
                 sizeof receive_buffer_bytes);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(descriptor);
    throw std::runtime_error("cannot connect");
  }
  return descriptor;
}

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<std::size_t>(size));
  BIO_free(bio);
  return text;
}

}  // namespace

Wire::~Wire() { close(); }

void Wire::close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

long Wire::send(std::string_view bytes) {
  return ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

long Wire::receive(std::span<char> buffer) {
  return ::recv(descriptor_, buffer.data(), buffer.size(), 0);
}

std::unique_ptr<Wire> tcp_wire(std::uint16_t port, int receive_buffer_bytes) {
  return std::make_unique<Wire>(connected_tcp(port, receive_buffer_bytes));
}

std::unique_ptr<Wire> unix_wire(const std::string& path) {
  auto wire = std::make_unique<Wire>(limited_socket(AF_UNIX));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (::connect(wire->descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
      0) {
    throw std::runtime_error("cannot connect");
  }
  return wire;
}

std::unique_ptr<Wire> tls_wire(std::uint16_t port, const TlsClientOptions& options) {
  auto wire = std::make_unique<TlsWire>(connected_tcp(port, 0), options);
  if (!wire->connected()) throw std::runtime_error("no TLS handshake");
  return wire;
}

TlsFacts tls_facts(const Wire& wire) { return dynamic_cast<const TlsWire&>(wire).facts(); }

TestPair make_test_pair(long serial) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  BIO* certificate_bio = BIO_new(BIO_s_mem());
  BIO* key_bio = BIO_new(BIO_s_mem());
  if (X509_sign(certificate, key, EVP_sha256()) == 0 ||
      PEM_write_bio_X509(certificate_bio, certificate) != 1 ||
      PEM_write_bio_PrivateKey(key_bio, key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    throw std::runtime_error("no test certificate");
  }
  X509_free(certificate);
  EVP_PKEY_free(key);
  return {.certificate = text_of(certificate_bio), .key = text_of(key_bio)};
}

}  // namespace kvasir::server::testing
