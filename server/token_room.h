// Whether a prompt and what is to be generated after it fit the context and the KV budget: what
// can never fit is refused before any work, with the numbers. Pure arithmetic; whether there is
// room now is the planner's.
#pragma once

#include "core/result.h"
#include "server/generate_service.h"

#include <cstdint>
#include <optional>
#include <string>

namespace kvasir::server {

/// What a request says of its length.
struct WantedTokens {
  std::optional<std::uint64_t> max_tokens = {};  // absent: what is left, up to when_absent
  std::uint64_t min_tokens = 0;
  std::uint64_t when_absent = 0;
};

/// Most tokens to generate after a prompt. An explicit max_tokens is taken as it is, or refused.
/// Errors: kContextLengthExceeded, at `param`.
[[nodiscard]] Result<std::uint32_t> resolve_max_tokens(const ModelInfo& model,
                                                       std::uint64_t prompt_tokens,
                                                       const WantedTokens& wanted,
                                                       const std::string& param);

}  // namespace kvasir::server
