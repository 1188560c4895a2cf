// The C++ API of gRPC 1.51 takes a pair once, or watches files by itself, which could show a pair
// that TlsIdentity refused. The C API beneath it asks for the pair at each handshake.
#include "server/grpc/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <atomic>
#include <string>

namespace kvasir::server {
namespace {

class ReloadingCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadingCredentials(const TlsIdentity& identity)
      : identity_(identity),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE, &fetch, this))) {}
  ~ReloadingCredentials() override { grpc_server_credentials_release(credentials_); }
  ReloadingCredentials(const ReloadingCredentials&) = delete;
  ReloadingCredentials& operator=(const ReloadingCredentials&) = delete;

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  /// Before each handshake; gRPC begins one at a time on a listening address.
  static grpc_ssl_certificate_config_reload_status fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    auto& credentials = *static_cast<ReloadingCredentials*>(self);
    const std::shared_ptr<const TlsPair> pair = credentials.identity_.current();
    if (pair->generation == credentials.shown_generation_.load()) {
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    const grpc_ssl_pem_key_cert_pair pem{pair->private_key_pem.c_str(),
                                         pair->certificate_chain_pem.c_str()};
    // A replaced pair must come with roots for the certificates of clients, or gRPC aborts. None is
    // asked of clients, so what stands there judges nobody.
    *config =
        grpc_ssl_server_certificate_config_create(pair->certificate_chain_pem.c_str(), &pem, 1);
    credentials.shown_generation_.store(pair->generation);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const TlsIdentity& identity_;
  std::atomic<std::uint64_t> shown_generation_{0};  // no pair's
  grpc_server_credentials* const credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> tls_credentials(const TlsIdentity& identity) {
  return std::make_shared<ReloadingCredentials>(identity);
}

}  // namespace kvasir::server
