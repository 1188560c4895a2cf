// Who may call, and whether there is room: judged from the metadata alone, before a byte of the
// message is looked at. Health and reflection stand beside the gate, as probes do.
#pragma once

#include "core/result.h"
#include "server/api_keys.h"
#include "server/generate_service.h"
#include "server/grpc/call_limits.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <memory>

namespace kvasir::server {

/// What a call was let in with.
struct Admission {
  std::unique_ptr<CallLimits::Ticket> ticket;
  std::uint64_t tenant = 0;
  std::chrono::milliseconds write_timeout{0};
  const GenerateService* service = nullptr;  // never null
};

/// Thread-safe.
class CallGate {
 public:
  /// `api_keys` may be null; it and `service` outlive the gate and its calls.
  CallGate(const GenerateService& service, const ApiKeys* api_keys,
           std::shared_ptr<CallLimits> limits, std::chrono::milliseconds write_timeout);

  /// Errors: kInvalidApiKey, kQueueFull.
  [[nodiscard]] Result<Admission> admit(const grpc::CallbackServerContext& context) const;
  /// Only who calls, for what is answered at once. Errors: kInvalidApiKey, also when there are two
  /// keys.
  [[nodiscard]] Result<std::uint64_t> tenant_of(const grpc::CallbackServerContext& context) const;

 private:
  const GenerateService& service_;
  const ApiKeys* const api_keys_;
  const std::shared_ptr<CallLimits> limits_;
  const std::chrono::milliseconds write_timeout_;
};

}  // namespace kvasir::server
