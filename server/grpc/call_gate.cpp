#include "server/grpc/call_gate.h"

#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

namespace kvasir::server {

CallGate::CallGate(const GenerateService& service, const ApiKeys* api_keys,
                   std::shared_ptr<CallLimits> limits, std::chrono::milliseconds write_timeout)
    : service_(service),
      api_keys_(api_keys),
      limits_(std::move(limits)),
      write_timeout_(write_timeout) {}

Result<Admission> CallGate::admit(const grpc::CallbackServerContext& context) const {
  const Result<std::uint64_t> tenant = tenant_of(context);
  if (!tenant) return tl::unexpected<Error>(tenant.error());
  Result<std::unique_ptr<CallLimits::Ticket>> ticket = limits_->enter(context.peer());
  if (!ticket) return tl::unexpected<Error>(ticket.error());
  return Admission{.ticket = std::move(*ticket),
                   .tenant = *tenant,
                   .write_timeout = write_timeout_,
                   .service = &service_};
}

Result<std::uint64_t> CallGate::tenant_of(const grpc::CallbackServerContext& context) const {
  if (api_keys_ == nullptr) return 0;
  const auto [first, last] = context.client_metadata().equal_range("authorization");
  if (first == last) return api_keys_->tenant_of(std::nullopt);
  if (std::next(first) != last && api_keys_->required()) {
    return fail(ErrorCode::kInvalidApiKey, "the call has more than one authorization");
  }
  return api_keys_->tenant_of(std::string_view(first->second.data(), first->second.size()));
}

}  // namespace kvasir::server
