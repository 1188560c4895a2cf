// A plan as the protobuf message that gRPC answers: the members of REST's object, under their
// names.
#pragma once

#include "kvasir/v1/inference.pb.h"
#include "kvcache/kv_calculator.h"

namespace kvasir::server {

[[nodiscard]] v1::PlanResponse plan_message(const kvcache::KvPlan& plan);

}  // namespace kvasir::server
