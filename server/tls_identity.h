// The certificate and key that both doors show, read again at SIGHUP. The handshakes are Asio's and
// gRPC's; here the pair is read, checked to belong together, and handed out as one.
#pragma once

#include "core/result.h"

#include <cstdint>
#include <memory>
#include <string>

namespace kvasir::server {

/// The options that an error of reload() may name, in Error::param.
inline constexpr const char* kTlsCertOption = "tls-cert";
inline constexpr const char* kTlsKeyOption = "tls-key";

struct TlsPair {
  std::string certificate_chain_pem;
  std::string private_key_pem;
  std::uint64_t generation = 0;  // rises with every reload
};

/// Thread-safe.
class TlsIdentity {
 public:
  TlsIdentity(std::string cert_path, std::string key_path);
  ~TlsIdentity();
  TlsIdentity(const TlsIdentity&) = delete;
  TlsIdentity& operator=(const TlsIdentity&) = delete;

  /// Reads both files. A failure leaves the old pair. Errors: kInvalidConfig naming the file when
  /// one is unreadable, not PEM, or the two do not belong together; `param` is its option.
  [[nodiscard]] Result<void> reload();
  /// Null before the first successful reload().
  [[nodiscard]] std::shared_ptr<const TlsPair> current() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::server
