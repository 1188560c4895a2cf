// Digests under a secret that each run of the daemon draws anew: what separates tenants in the
// prefix cache must be nothing that a client could aim at. Not for anything that outlives the run.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace kvasir::server {

/// Immutable, hence thread-safe.
class KeyedDigest {
 public:
  /// Draws the secret.
  KeyedDigest();
  ~KeyedDigest();
  KeyedDigest(const KeyedDigest&) = delete;
  KeyedDigest& operator=(const KeyedDigest&) = delete;

  /// The first 64 bits of HMAC-SHA-256 over the parts, each with its length in front, so that no
  /// two lists of parts run together. Never 0, which stands for "none" wherever digests are used.
  [[nodiscard]] std::uint64_t of(std::initializer_list<std::string_view> parts) const;

 private:
  std::array<unsigned char, 32> secret_{};
};

}  // namespace kvasir::server
