#include "server/http/tls_context.h"

#include <spdlog/spdlog.h>

#include <array>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <string>
#include <string_view>

namespace kvasir::server {
namespace {

/// In the form of ALPN: each name after its length.
constexpr std::string_view kProtocols = "\x08http/1.1";

/// A client that names protocols must name ours; one that names none speaks HTTP/1.1.
int select_protocol(SSL* /*ssl*/, const unsigned char** chosen, unsigned char* chosen_bytes,
                    const unsigned char* offered, unsigned int offered_bytes, void* /*argument*/) {
  unsigned char* found = nullptr;
  const int result = SSL_select_next_proto(
      &found, chosen_bytes, reinterpret_cast<const unsigned char*>(kProtocols.data()),
      static_cast<unsigned int>(kProtocols.size()), offered, offered_bytes);
  *chosen = found;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
struct FreeX509 {
  void operator()(X509* certificate) const { X509_free(certificate); }
};
struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};

std::unique_ptr<BIO, FreeBio> bio_of(const std::string& text) {
  return std::unique_ptr<BIO, FreeBio>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

bool use_chain(SSL_CTX* context, const std::string& pem) {
  const auto bio = bio_of(pem);
  std::unique_ptr<X509, FreeX509> leaf(PEM_read_bio_X509_AUX(bio.get(), nullptr, nullptr, nullptr));
  if (!leaf || SSL_CTX_use_certificate(context, leaf.get()) != 1) return false;
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    if (SSL_CTX_add0_chain_cert(context, next) != 1) {
      X509_free(next);
      return false;
    }
  }
  ERR_clear_error();  // the end of the text is told as an error
  return true;
}

bool use_key(SSL_CTX* context, const std::string& pem) {
  const auto bio = bio_of(pem);
  const std::unique_ptr<EVP_PKEY, FreeKey> key(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  return key && SSL_CTX_use_PrivateKey(context, key.get()) == 1 &&
         SSL_CTX_check_private_key(context) == 1;
}

/// Null when OpenSSL refuses any of it.
std::shared_ptr<SSL_CTX> make_context(const TlsPair& pair) {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (!context) return nullptr;
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                         SSL_OP_CIPHER_SERVER_PREFERENCE);
  // Buffers are given back while a connection is idle; a write may be cut and may move.
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // A read ends after each record, of whatever kind: a flood of them takes its turns like others.
  SSL_CTX_clear_mode(context.get(), SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_session_cache_mode(context.get(),
                                 SSL_SESS_CACHE_OFF);  // tickets need no cache
  SSL_CTX_set_alpn_select_cb(context.get(), select_protocol, nullptr);
  if (!use_chain(context.get(), pair.certificate_chain_pem) ||
      !use_key(context.get(), pair.private_key_pem)) {
    return nullptr;
  }
  return context;
}

}  // namespace

std::shared_ptr<SSL_CTX> TlsContexts::current() {
  if (identity_ == nullptr) return nullptr;
  const std::shared_ptr<const TlsPair> pair = identity_->current();
  const std::lock_guard lock(mutex_);
  if (pair && (!context_ || pair->generation != generation_)) {
    generation_ = pair->generation;
    if (auto made = make_context(*pair)) {
      context_ = std::move(made);
    } else {
      spdlog::error(
          "OpenSSL does not take the certificate and key; the ones "
          "before stay");
    }
  }
  return context_;
}

}  // namespace kvasir::server
