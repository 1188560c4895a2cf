#include "server/grpc/health_service.h"

#include "server/grpc/call_record.h"
#include "server/grpc/refused_stream.h"
#include "server/grpc/wire.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace kvasir::server {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ServingStatus = HealthCheckResponse::ServingStatus;

bool is_known(std::string_view service) {
  constexpr std::array<std::string_view, 3> kServices = {"", "kvasir.v1.Inference",
                                                         "grpc.health.v1.Health"};
  return std::find(kServices.begin(), kServices.end(), service) != kServices.end();
}

ServingStatus status_for(bool known, bool serving) {
  if (!known) return HealthCheckResponse::SERVICE_UNKNOWN;
  return serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

}  // namespace

/// One Watch: writes the status whenever it differs from the last one written. All members are
/// guarded by the service's mutex; a watcher that falls behind skips to the newest status.
class HealthService::Watcher final : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  Watcher(HealthService& health, bool known, std::unique_ptr<CallLimits::Ticket> ticket,
          CallRecord record)
      : health_(health), known_(known), ticket_(std::move(ticket)), record_(std::move(record)) {}

  /// The mutex is held.
  void update() {
    if (finished_ || writing_) return;
    const ServingStatus status = status_for(known_, health_.serving_);
    if (cancelled_ || health_.shut_down_) {
      finished_ = true;
      set_failed(record_, cancelled_ ? ErrorCode::kCancelled : ErrorCode::kDraining);
      Finish(cancelled_ ? grpc::Status(grpc::StatusCode::CANCELLED, "the watch was cancelled")
                        : grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server shuts down"));
    } else if (written_ != status) {
      written_ = status;
      writing_ = true;
      response_.set_status(status);
      StartWrite(&response_);
    }
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(health_.mutex_);
    writing_ = false;
    if (!ok) cancelled_ = true;
    update();
  }
  void OnCancel() override {
    const std::lock_guard lock(health_.mutex_);
    cancelled_ = true;
    update();
  }
  void OnDone() override {
    {
      const std::lock_guard lock(health_.mutex_);
      health_.watchers_.remove(this);
      log_call(record_);
    }
    delete this;
  }

 private:
  HealthService& health_;
  const bool known_;
  const std::unique_ptr<CallLimits::Ticket> ticket_;
  CallRecord record_;
  bool writing_ = false;
  bool cancelled_ = false;
  bool finished_ = false;
  std::optional<ServingStatus> written_;
  HealthCheckResponse response_;
};

void HealthService::publish() {
  const std::lock_guard lock(mutex_);
  publish_locked();
}

/// The mutex is held.
void HealthService::publish_locked() {
  serving_ = !shut_down_ && service_.check_serving().has_value();
  for (Watcher* watcher : watchers_) watcher->update();
}

void HealthService::shut_down() {
  const std::lock_guard lock(mutex_);
  serving_ = false;
  shut_down_ = true;
  for (Watcher* watcher : watchers_) watcher->update();
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  CallRecord record{.method = "Health/Check", .metrics = &service_.metrics()};
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!is_known(request->service())) {
    record.status = grpc::StatusCode::NOT_FOUND;
    record.outcome = "unknown_service";
    log_call(record);
    reactor->Finish({grpc::StatusCode::NOT_FOUND, "unknown service"});
    return reactor;
  }
  log_call(record);
  const std::lock_guard lock(mutex_);
  publish_locked();
  response->set_status(status_for(true, serving_));
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext* context, const HealthCheckRequest* request) {
  CallRecord record{.method = "Health/Watch", .metrics = &service_.metrics()};
  Result<std::unique_ptr<CallLimits::Ticket>> ticket = limits_->enter(context->peer());
  if (!ticket) {
    log_call(std::move(record), tl::unexpected(ticket.error()));
    return new RefusedStream<HealthCheckResponse>(status_of(ticket.error()));
  }
  auto* watcher =
      new Watcher(*this, is_known(request->service()), std::move(*ticket), std::move(record));
  const std::lock_guard lock(mutex_);
  watchers_.push_back(watcher);
  publish_locked();
  return watcher;
}

}  // namespace kvasir::server
