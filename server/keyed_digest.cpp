#include "server/keyed_digest.h"

#include "core/check.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <string>

namespace kvasir::server {
namespace {

void append_number(std::uint64_t number, std::string& bytes) {
  for (unsigned shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(number >> shift);
}

}  // namespace

KeyedDigest::KeyedDigest() {
  const int drawn = RAND_bytes(secret_.data(), static_cast<int>(secret_.size()));
  KVASIR_CHECK(drawn == 1, "the system gives no random bytes");
}

KeyedDigest::~KeyedDigest() { OPENSSL_cleanse(secret_.data(), secret_.size()); }

std::uint64_t KeyedDigest::of(std::initializer_list<std::string_view> parts) const {
  std::string message;
  for (const std::string_view part : parts) {
    append_number(part.size(), message);
    message += part;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  const unsigned char* made = HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
                                   reinterpret_cast<const unsigned char*>(message.data()),
                                   message.size(), digest.data(), &size);
  KVASIR_CHECK(made != nullptr);
  std::uint64_t number = 0;
  for (unsigned i = 0; i < 8; ++i) number |= std::uint64_t{digest[i]} << (8 * i);
  return number == 0 ? 1 : number;
}

}  // namespace kvasir::server
