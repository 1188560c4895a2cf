// The TLS side of the REST door: an OpenSSL context for the pair that TlsIdentity holds now, made
// anew when that pair was read again. Connections that are open keep the context they began with.
#pragma once

#include "server/tls_identity.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <openssl/types.h>

namespace kvasir::server {

/// Thread-safe.
class TlsContexts {
 public:
  /// `identity` must outlive it; null: no TLS.
  explicit TlsContexts(const TlsIdentity* identity) : identity_(identity) {}

  [[nodiscard]] bool enabled() const { return identity_ != nullptr; }
  /// For a new connection: TLS 1.2 or later, HTTP/1.1 alone by ALPN, no renegotiation. Null when
  /// OpenSSL takes no pair at all; a pair that it does not take leaves the one before it.
  [[nodiscard]] std::shared_ptr<SSL_CTX> current();

 private:
  const TlsIdentity* identity_;
  std::mutex mutex_;
  std::shared_ptr<SSL_CTX> context_;
  std::uint64_t generation_ = 0;  // of the pair that was looked at last
};

}  // namespace kvasir::server
