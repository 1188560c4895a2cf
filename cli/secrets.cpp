#include "cli/secrets.h"

#include "cli/startup_error.h"

#include <spdlog/spdlog.h>

namespace kvasir::cli {
namespace {

constexpr const char* kAllowedKeys =
    "; allowed: a file with one API key a line, of 1 to 512 visible ASCII characters each";
constexpr const char* kAllowedTls = "; allowed: PEM files of a certificate and its private key";

[[noreturn]] void refuse(const config::LoadedOptions& loaded, const std::string& option,
                         const std::string& what) {
  throw StartupError(config::origin_of(loaded, option) + ": " + what);
}

void check_both_tls_options(const config::LoadedOptions& loaded) {
  const config::ServeOptions& options = loaded.options;
  if (options.tls_cert_path.empty() == options.tls_key_path.empty()) return;
  const bool has_cert = options.tls_key_path.empty();
  refuse(loaded, has_cert ? server::kTlsCertOption : server::kTlsKeyOption,
         std::string("is set without --") +
             (has_cert ? server::kTlsKeyOption : server::kTlsCertOption) +
             "; allowed: both or neither");
}

void log_reload(const char* what, const Result<void>& result) {
  if (result) {
    spdlog::info("hang-up: {} read again", what);
  } else {
    spdlog::error("hang-up: {} not changed: {}", what, result.error().message);
  }
}

}  // namespace

Secrets::Secrets(const config::LoadedOptions& loaded) : api_key_path_(loaded.options.api_key_path) {
  const config::ServeOptions& options = loaded.options;
  check_both_tls_options(loaded);
  if (!api_key_path_.empty()) {
    api_keys_ = std::make_unique<server::ApiKeys>();
    if (auto ok = api_keys_->load(api_key_path_); !ok)
      refuse(loaded, "api-key-file", ok.error().message + kAllowedKeys);
  }
  if (!options.tls_cert_path.empty()) {
    tls_ = std::make_unique<server::TlsIdentity>(options.tls_cert_path, options.tls_key_path);
    if (auto ok = tls_->reload(); !ok)
      refuse(loaded, ok.error().param, ok.error().message + kAllowedTls);
  }
}

void Secrets::reload() {
  if (api_keys_ == nullptr && tls_ == nullptr)
    spdlog::info("hang-up: there are no API keys and no certificate to read again");
  if (api_keys_ != nullptr) log_reload("API keys", api_keys_->load(api_key_path_));
  if (tls_ != nullptr) log_reload("TLS certificate and key", tls_->reload());
}

std::string open_host_warning(const config::ServeOptions& options) {
  const std::string& host = options.host;
  const bool loopback =
      host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.");
  if (loopback || !options.api_key_path.empty()) return {};
  return "host " + host +
         " may be reached from other machines, and no API keys are asked for (--api-key-file)";
}

}  // namespace kvasir::cli
