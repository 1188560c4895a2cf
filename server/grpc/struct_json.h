// A google.protobuf.Struct as the JSON object that REST would have been sent.
#pragma once

#include "core/result.h"

#include <google/protobuf/struct.pb.h>

#include <cstddef>
#include <string>

namespace kvasir::server {

/// No more than so many bytes of wire are looked at: a value of 2 bytes there costs some 100 in
/// memory here. It is far above what the row's bound on the JSON lets pass.
inline constexpr std::size_t kMaxStructBytes = 1U << 20U;

/// Members in ascending order; numbers without a fraction are integers where a double holds them
/// exactly. Errors: kInvalidValue at `param` for more than kMaxStructBytes, NaN and infinities. The
/// nesting is bounded by protobuf's own limit for messages.
[[nodiscard]] Result<std::string> json_text(const google::protobuf::Struct& object,
                                            const std::string& param);

}  // namespace kvasir::server
