// What the operator keeps in files and may change while the daemon runs: API keys and the TLS pair.
// Read at start, where a fault ends it, and again at a hang-up, where a fault leaves what was.
#pragma once

#include "config/load.h"
#include "server/api_keys.h"
#include "server/tls_identity.h"

#include <memory>
#include <string>

namespace kvasir::cli {

class Secrets {
 public:
  /// Throws StartupError naming the option and the file.
  explicit Secrets(const config::LoadedOptions& loaded);
  Secrets(const Secrets&) = delete;
  Secrets& operator=(const Secrets&) = delete;

  /// Null: no keys are asked for.
  [[nodiscard]] const server::ApiKeys* api_keys() const { return api_keys_.get(); }
  /// Null: no TLS.
  [[nodiscard]] const server::TlsIdentity* tls() const { return tls_.get(); }
  /// Reads the files again and logs what came of it.
  void reload();

 private:
  std::string api_key_path_;
  std::unique_ptr<server::ApiKeys> api_keys_;
  std::unique_ptr<server::TlsIdentity> tls_;
};

/// A warning where anybody on the network may ask: the host is no loopback address and there are no
/// keys. Empty otherwise.
[[nodiscard]] std::string open_host_warning(const config::ServeOptions& options);

}  // namespace kvasir::cli
