// The methods of kvasir.v1.Inference, raw: messages are parsed here, judged by the shared
// validator, answered by generate_call or on the spot. Registration and settings are grpc_server's.
#pragma once

#include "server/generate_service.h"
#include "server/grpc/call_gate.h"
#include "server/grpc/generate_call.h"

#include <grpcpp/impl/service_type.h>

#include <memory>

namespace kvasir::server {

/// `service` must outlive what is made.
[[nodiscard]] std::unique_ptr<grpc::Service> make_inference_service(
    GenerateService& service, std::shared_ptr<CallWorkers> workers, CallGate gate);

}  // namespace kvasir::server
