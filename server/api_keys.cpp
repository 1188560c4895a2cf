// What is kept of a key is its SHA-256: the file's text is wiped once it is read.
#include "server/api_keys.h"

#include "core/check.h"
#include "server/keyed_digest.h"
#include "server/secret_file.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <utility>
#include <vector>

namespace kvasir::server {
namespace {

constexpr std::size_t kMaxFileBytes = 1U << 20U;
constexpr std::size_t kMaxKeyBytes = 512;
/// Every request is compared with every key.
constexpr std::size_t kMaxKeys = 4096;

using Digest = std::array<unsigned char, 32>;
using Digests = std::vector<Digest>;

Digest sha256(std::string_view bytes) {
  Digest digest{};
  unsigned size = 0;
  const int made =
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr);
  KVASIR_CHECK(made == 1);
  KVASIR_CHECK(size == digest.size());
  return digest;
}

/// What is wrong with the line as a key; empty: nothing.
std::string fault_of(std::string_view key) {
  if (key.size() > kMaxKeyBytes) {
    return "is longer than " + std::to_string(kMaxKeyBytes) + " bytes";
  }
  const bool visible =
      std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 127; });
  return visible ? "" : "has a character that is not visible ASCII";
}

/// The error does not show the line: it may be a key with a slip in it.
Result<Digests> parse_keys(const std::string& path, std::string_view text) {
  Digests keys;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    const std::string where = "line " + std::to_string(number) + " ";
    if (const std::string fault = fault_of(line); !fault.empty()) {
      return tl::unexpected<Error>(secret_file_error(path, "is no list of keys: " + where + fault));
    }
    if (keys.size() == kMaxKeys) {
      return tl::unexpected<Error>(
          secret_file_error(path, "has more than " + std::to_string(kMaxKeys) + " keys"));
    }
    keys.push_back(sha256(line));
  }
  if (keys.empty()) return tl::unexpected<Error>(secret_file_error(path, "holds no key"));
  return keys;
}

bool is_bearer(std::string_view scheme) {
  constexpr std::string_view kBearer = "bearer";
  return std::equal(
      scheme.begin(), scheme.end(), kBearer.begin(), kBearer.end(),
      [](char a, char b) { return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 32) : a) == b; });
}

/// The key in "Bearer K"; empty when there is none.
std::string_view offered_key(std::string_view authorization) {
  const std::size_t space = authorization.find(' ');
  if (space == std::string_view::npos || !is_bearer(authorization.substr(0, space))) return {};
  const std::size_t key = authorization.find_first_not_of(' ', space);
  if (key == std::string_view::npos) return {};
  return authorization.substr(key, authorization.find_last_not_of(' ') + 1 - key);
}

/// Looks at every key and every byte, whatever it has found: the time says nothing of how much
/// agreed, nor of which key it was.
bool contains(const Digests& keys, const Digest& offered) {
  int found = 0;
  for (const Digest& key : keys) {
    found |= static_cast<int>(CRYPTO_memcmp(key.data(), offered.data(), key.size()) == 0);
  }
  return found != 0;
}

}  // namespace

struct ApiKeys::Impl {
  const KeyedDigest tenants;
  mutable std::mutex mutex;             // guards what follows
  std::shared_ptr<const Digests> keys;  // null: none is asked for

  [[nodiscard]] std::shared_ptr<const Digests> current() const {
    const std::lock_guard lock(mutex);
    return keys;
  }
};

ApiKeys::ApiKeys() : impl_(std::make_unique<Impl>()) {}
ApiKeys::~ApiKeys() = default;

Result<void> ApiKeys::load(const std::string& path) {
  Result<std::string> text = read_secret_file(path, kMaxFileBytes);
  if (!text) return tl::unexpected<Error>(text.error());
  Result<Digests> keys = parse_keys(path, *text);
  wipe(*text);
  if (!keys) return tl::unexpected<Error>(keys.error());
  auto loaded = std::make_shared<const Digests>(std::move(*keys));
  const std::lock_guard lock(impl_->mutex);
  impl_->keys = std::move(loaded);
  return {};
}

bool ApiKeys::required() const { return impl_->current() != nullptr; }

Result<std::uint64_t> ApiKeys::tenant_of(std::optional<std::string_view> authorization) const {
  const std::shared_ptr<const Digests> keys = impl_->current();
  if (keys == nullptr) return 0;
  const std::string_view key = authorization ? offered_key(*authorization) : std::string_view();
  if (key.empty()) {
    return fail(ErrorCode::kInvalidApiKey,
                "this server asks for an API key: send it as \"Authorization: Bearer KEY\"");
  }
  const Digest offered = sha256(key);
  if (!contains(*keys, offered)) {
    return fail(ErrorCode::kInvalidApiKey, "the API key is not one of this server's");
  }
  return impl_->tenants.of({{reinterpret_cast<const char*>(offered.data()), offered.size()}});
}

}  // namespace kvasir::server
