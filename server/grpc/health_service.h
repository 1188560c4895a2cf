// grpc.health.v1.Health for the server as a whole and each of its services, from one readiness.
#pragma once

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/generate_service.h"
#include "server/grpc/call_limits.h"

#include <grpcpp/grpcpp.h>

#include <list>
#include <memory>
#include <mutex>

namespace kvasir::server {

/// A watch costs a stream for as long as it likes, so watches are counted apart from the calls that
/// do work: neither can crowd the other out.
inline constexpr CallBounds kWatchBounds{.per_connection = 16, .in_all = 256};

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  /// `service` says whether it serves, counts the calls and outlives this one.
  explicit HealthService(const GenerateService& service) : service_(service) {}

  /// Asks whether it serves and tells all watchers when that changed; so does each Check. Any
  /// thread.
  void publish();
  /// Ends the watches with a status; later ones end at once.
  void shut_down();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class Watcher;

  void publish_locked();

  const GenerateService& service_;
  const std::shared_ptr<CallLimits> limits_ = std::make_shared<CallLimits>(kWatchBounds);
  std::mutex mutex_;  // guards what follows, and the watchers' state
  bool serving_ = false;
  bool shut_down_ = false;
  std::list<Watcher*> watchers_;
};

}  // namespace kvasir::server
