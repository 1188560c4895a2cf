// gRPC's TLS over a TlsIdentity: each handshake shows the pair that is current then, so a reload
// needs no new listener and touches no open connection.
#pragma once

#include "server/tls_identity.h"

#include <grpcpp/security/server_credentials.h>

#include <memory>

namespace kvasir::server {

/// For one listening port, whose server must not outlive the credentials (gRPC itself keeps them no
/// longer than until it listens). `identity` has a pair, and outlives both.
[[nodiscard]] std::shared_ptr<grpc::ServerCredentials> tls_credentials(const TlsIdentity& identity);

}  // namespace kvasir::server
