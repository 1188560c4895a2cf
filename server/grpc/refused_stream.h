// A stream that never was: it ends with a status at once.
#pragma once

#include <grpcpp/grpcpp.h>

namespace kvasir::server {

template <typename Message>
class RefusedStream final : public grpc::ServerWriteReactor<Message> {
 public:
  explicit RefusedStream(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace kvasir::server
