#include "server/tls_identity.h"

#include "server/secret_file.h"

#include <cstddef>
#include <mutex>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <utility>

namespace kvasir::server {
namespace {

constexpr std::size_t kMaxFileBytes = 1U << 20U;

template <auto Free>
struct Release {
  void operator()(auto* object) const { Free(object); }
};
using Bio = std::unique_ptr<BIO, Release<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Release<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Release<EVP_PKEY_free>>;
using Context = std::unique_ptr<SSL_CTX, Release<SSL_CTX_free>>;

/// Without it OpenSSL asks for the password on the terminal.
int no_password(char* /*buffer*/, int /*size*/, int /*writing*/, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

Bio bio_of(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

/// What OpenSSL says of the last failure; clears it.
std::string last_reason() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason != nullptr ? reason : "no reason given";
}

/// The pair as a server would show it: every certificate readable, the key the first one's, both of
/// a strength that OpenSSL takes.
class PairCheck {
 public:
  PairCheck(std::string cert_path, std::string key_path)
      : cert_path_(std::move(cert_path)), key_path_(std::move(key_path)) {}

  [[nodiscard]] Result<void> run(const TlsPair& pair) const {
    ERR_clear_error();
    Result<Certificate> certificate = first_certificate(pair.certificate_chain_pem);
    if (!certificate) return tl::unexpected<Error>(certificate.error());
    Result<PrivateKey> key = private_key(pair.private_key_pem);
    if (!key) return tl::unexpected<Error>(key.error());
    if (X509_check_private_key(certificate->get(), key->get()) != 1) {
      ERR_clear_error();
      return refuse_key("is not the private key of " + shown_path(cert_path_));
    }
    const Context context(SSL_CTX_new(TLS_server_method()));
    if (context == nullptr || SSL_CTX_use_certificate(context.get(), certificate->get()) != 1) {
      return refuse_certificate("cannot be used: " + last_reason());
    }
    if (SSL_CTX_use_PrivateKey(context.get(), key->get()) != 1) {
      return refuse_key("cannot be used: " + last_reason());
    }
    return {};
  }

 private:
  [[nodiscard]] tl::unexpected<Error> refuse_certificate(const std::string& what) const {
    Error error = secret_file_error(cert_path_, what);
    error.param = kTlsCertOption;
    return tl::unexpected<Error>(std::move(error));
  }
  [[nodiscard]] tl::unexpected<Error> refuse_key(const std::string& what) const {
    Error error = secret_file_error(key_path_, what);
    error.param = kTlsKeyOption;
    return tl::unexpected<Error>(std::move(error));
  }

  [[nodiscard]] Result<Certificate> first_certificate(const std::string& pem) const {
    const Bio bio = bio_of(pem);
    Certificate first(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (first == nullptr) {
      return refuse_certificate("is no PEM certificate: " + last_reason());
    }
    while (Certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) != nullptr) {
    }
    // The end of the file is the one good reason to stop.
    const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
    const std::string reason = last_reason();
    if (!at_end) return refuse_certificate("has a damaged certificate: " + reason);
    return first;
  }

  [[nodiscard]] Result<PrivateKey> private_key(const std::string& pem) const {
    const Bio bio = bio_of(pem);
    bool asked = false;
    PrivateKey key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &no_password, &asked));
    const std::string reason = last_reason();
    if (asked) return refuse_key("is encrypted; allowed: a key without a password");
    if (key == nullptr) return refuse_key("is no PEM private key: " + reason);
    return key;
  }

  const std::string cert_path_;
  const std::string key_path_;
};

Result<std::string> read_named(const std::string& path, const char* option) {
  Result<std::string> pem = read_secret_file(path, kMaxFileBytes);
  if (!pem) pem.error().param = option;
  return pem;
}

}  // namespace

struct TlsIdentity::Impl {
  const std::string cert_path;
  const std::string key_path;
  mutable std::mutex mutex;  // guards what follows
  std::shared_ptr<const TlsPair> pair;
};

TlsIdentity::TlsIdentity(std::string cert_path, std::string key_path)
    : impl_(new Impl{.cert_path = std::move(cert_path),
                     .key_path = std::move(key_path),
                     .mutex = {},
                     .pair = {}}) {}
TlsIdentity::~TlsIdentity() = default;

Result<void> TlsIdentity::reload() {
  Result<std::string> certificate = read_named(impl_->cert_path, kTlsCertOption);
  if (!certificate) return tl::unexpected<Error>(certificate.error());
  Result<std::string> key = read_named(impl_->key_path, kTlsKeyOption);
  if (!key) return tl::unexpected<Error>(key.error());
  auto pair = std::make_shared<TlsPair>(TlsPair{.certificate_chain_pem = std::move(*certificate),
                                                .private_key_pem = std::move(*key)});
  if (auto ok = PairCheck(impl_->cert_path, impl_->key_path).run(*pair); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  const std::lock_guard lock(impl_->mutex);
  pair->generation = impl_->pair == nullptr ? 1 : impl_->pair->generation + 1;
  impl_->pair = std::move(pair);
  return {};
}

std::shared_ptr<const TlsPair> TlsIdentity::current() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->pair;
}

}  // namespace kvasir::server
