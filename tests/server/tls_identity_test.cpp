// Certificates and keys made here by OpenSSL: pairs that belong together, and what must be refused.
#include "server/tls_identity.h"

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

#include <memory>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <string>

using namespace kvasir;
using namespace kvasir::server;

namespace {

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<std::size_t>(size));
  BIO_free(bio);
  return text;
}

struct Pair {
  std::string certificate;
  std::string key;
  std::string encrypted_key;
};

/// Self-signed; `rsa_bits` 0 is an elliptic curve's.
Pair make_pair(unsigned rsa_bits = 0) {
  EVP_PKEY* key = rsa_bits == 0 ? EVP_EC_gen("P-256") : EVP_RSA_gen(rsa_bits);
  REQUIRE(key != nullptr);
  X509* certificate = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  REQUIRE(X509_sign(certificate, key, EVP_sha256()) != 0);
  BIO* certificate_bio = BIO_new(BIO_s_mem());
  BIO* key_bio = BIO_new(BIO_s_mem());
  BIO* encrypted_bio = BIO_new(BIO_s_mem());
  REQUIRE(PEM_write_bio_X509(certificate_bio, certificate) == 1);
  REQUIRE(PEM_write_bio_PrivateKey(key_bio, key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  const std::string password = "pass";
  REQUIRE(PEM_write_bio_PrivateKey(encrypted_bio, key, EVP_aes_128_cbc(),
                                   reinterpret_cast<const unsigned char*>(password.data()),
                                   static_cast<int>(password.size()), nullptr, nullptr) == 1);
  Pair pair{text_of(certificate_bio), text_of(key_bio), text_of(encrypted_bio)};
  X509_free(certificate);
  EVP_PKEY_free(key);
  return pair;
}

/// "option: message" of loading these bytes.
std::string error_of(const std::string& certificate, const std::string& key) {
  const testing::TemporaryFolder folder;
  TlsIdentity identity(folder.write("cert.pem", certificate), folder.write("key.pem", key));
  const auto loaded = identity.reload();
  REQUIRE(!loaded);
  CHECK(loaded.error().code == ErrorCode::kInvalidConfig);
  CHECK(loaded.error().message.find('\n') == std::string::npos);
  CHECK(identity.current() == nullptr);
  return loaded.error().param + ": " + loaded.error().message;
}

bool says(const std::string& text, const std::string& option, const std::string& part) {
  return text.starts_with(option + ": ") && text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("TlsIdentity: a pair that belongs together is handed out, its generation rising",
          "[server]") {
  const testing::TemporaryFolder folder;
  const Pair first = make_pair();
  TlsIdentity identity(folder.write("cert.pem", first.certificate),
                       folder.write("key.pem", first.key));
  CHECK(identity.current() == nullptr);
  REQUIRE(identity.reload());
  const auto held = identity.current();
  CHECK(held->certificate_chain_pem == first.certificate);
  CHECK(held->private_key_pem == first.key);
  const Pair second = make_pair(2048);
  folder.write("cert.pem", second.certificate + first.certificate);  // a chain
  folder.write("key.pem", second.key);
  REQUIRE(identity.reload());
  CHECK(identity.current()->certificate_chain_pem == second.certificate + first.certificate);
  CHECK(identity.current()->generation > held->generation);
  CHECK(held->private_key_pem == first.key);
}

TEST_CASE("TlsIdentity: a reload that fails leaves the old pair", "[server]") {
  const testing::TemporaryFolder folder;
  const Pair pair = make_pair();
  TlsIdentity identity(folder.write("cert.pem", pair.certificate),
                       folder.write("key.pem", pair.key));
  REQUIRE(identity.reload());
  const auto held = identity.current();
  folder.write("key.pem", make_pair().key);
  const auto reloaded = identity.reload();
  REQUIRE(!reloaded);
  CHECK(says(reloaded.error().param + ": " + reloaded.error().message, "tls-key",
             "is not the private key of"));
  CHECK(identity.current() == held);
}

TEST_CASE("TlsIdentity: what is no usable pair is refused by its option and file", "[server]") {
  const Pair pair = make_pair();
  const Pair other = make_pair();
  const std::string cut = pair.certificate.substr(0, pair.certificate.size() / 2);
  CHECK(says(error_of("", pair.key), "tls-cert", "cert.pem\" is no PEM certificate"));
  CHECK(says(error_of(cut, pair.key), "tls-cert", "is no PEM certificate"));
  CHECK(says(error_of(pair.key, pair.key), "tls-cert", "is no PEM certificate"));
  CHECK(says(error_of(pair.certificate + cut, pair.key), "tls-cert", "damaged certificate"));
  CHECK(says(error_of(pair.certificate, ""), "tls-key", "key.pem\" is no PEM private key"));
  CHECK(says(error_of(pair.certificate, pair.certificate), "tls-key", "is no PEM private key"));
  CHECK(says(error_of(pair.certificate, other.key), "tls-key", "is not the private key of"));
  CHECK(says(error_of(other.certificate + pair.certificate, pair.key), "tls-key",
             "is not the private key of"));
  CHECK(says(error_of(pair.certificate, pair.encrypted_key), "tls-key", "is encrypted"));
  CHECK(says(error_of(std::string((1U << 20U) + 1, 'x'), pair.key), "tls-cert", "is larger than"));
  const Pair weak = make_pair(512);
  CHECK(says(error_of(weak.certificate, weak.key), "tls-cert", "cannot be used"));
}

TEST_CASE("TlsIdentity: a file that is not there is refused by its option", "[server]") {
  const testing::TemporaryFolder folder;
  const Pair pair = make_pair();
  const std::string certificate = folder.write("cert.pem", pair.certificate);
  CHECK(TlsIdentity(certificate, folder.path_of("none")).reload().error().param == "tls-key");
  CHECK(TlsIdentity(folder.path_of("none"), certificate).reload().error().param == "tls-cert");
}
