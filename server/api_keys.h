// Who may use the server: keys from the operator's file, compared in constant time over SHA-256
// hashes. Where a key stands in a request is each door's business; one line of a refused key never
// reaches a log.
#pragma once

#include "core/result.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir::server {

/// Thread-safe.
class ApiKeys {
 public:
  /// No keys: everybody may ask, and belongs to tenant 0.
  ApiKeys();
  ~ApiKeys();
  ApiKeys(const ApiKeys&) = delete;
  ApiKeys& operator=(const ApiKeys&) = delete;

  /// Reads the file; at start and again at SIGHUP, when a failure leaves the old keys. Errors:
  /// kInvalidConfig when it is unreadable, too large, or holds no key.
  [[nodiscard]] Result<void> load(const std::string& path);
  /// False: no key is asked for.
  [[nodiscard]] bool required() const;
  /// `authorization` is the value of the Authorization field ("Bearer K", the scheme in any case);
  /// absent when there is none. The key's tenant, for CallContext::tenant: not 0, a keyed digest
  /// that differs between runs of the daemon and stays through reloads. Errors: kInvalidApiKey;
  /// what was sent is not in the message.
  [[nodiscard]] Result<std::uint64_t> tenant_of(
      std::optional<std::string_view> authorization) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::server
