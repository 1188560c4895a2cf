// A google.protobuf.Struct as the JSON object that REST would have been sent.
#pragma once

#include "core/result.h"

#include <google/protobuf/struct.pb.h>

#include <string>

namespace kvasir::server {

/// Members in ascending order; numbers without a fraction are integers where a double holds them
/// exactly. Errors: kInvalidValue at `param` for NaN and infinities. The nesting is bounded by
/// protobuf's own limit for messages.
[[nodiscard]] Result<std::string> json_text(const google::protobuf::Struct& object,
                                            const std::string& param);

}  // namespace kvasir::server
