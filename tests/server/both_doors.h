// The verdict of each door on the same request, without a daemon: REST reads the JSON, gRPC a
// message with the same values, and one validator judges both.
#pragma once

#include "core/result.h"
#include "server/field_table.h"
#include "server/request_limits.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <ostream>
#include <string>

namespace kvasir::server::testing {

inline constexpr std::uint32_t kDoorVocabSize = 5000;

/// What a request is told before anything runs.
struct DoorVerdict {
  std::optional<ErrorCode> code;  // absent: it passes
  std::string param;
  std::string message;
  friend bool operator==(const DoorVerdict& a, const DoorVerdict& b) {
    return a.code == b.code && a.param == b.param;
  }
};
std::ostream& operator<<(std::ostream& out, const DoorVerdict& verdict);

/// `user` is one of FieldUsers. `body` may hold numbers that no JSON text can say.
[[nodiscard]] DoorVerdict rest_verdict(FieldUsers user, const nlohmann::json& body,
                                       const RequestLimits& limits = {});
/// Nothing where no message can say `body`, and where gRPC is compiled out.
[[nodiscard]] std::optional<DoorVerdict> grpc_verdict(FieldUsers user, const nlohmann::json& body,
                                                      const RequestLimits& limits = {});
/// The type of the row's field in its request message, as protobuf names it: "optional int64",
/// "repeated string", ...; empty where there is none. Nothing where gRPC is compiled out.
[[nodiscard]] std::optional<std::string> grpc_type(FieldUsers user, const FieldRow& row);

/// The least that the endpoint takes.
[[nodiscard]] nlohmann::json plain_request(FieldUsers user);

}  // namespace kvasir::server::testing
