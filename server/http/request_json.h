// JSON bodies to request fields, by the rows of the field table: types only, ranges are the
// validator's. Fields that this build does not have but that mean something are refused by name;
// fields it does not know are counted and let pass.
#pragma once

#include "core/result.h"
#include "server/request_fields.h"
#include "server/request_limits.h"

#include <nlohmann/json.hpp>

#include <cstddef>

namespace kvasir::server {

/// What was read, and how many members were not known.
template <typename Fields>
struct ReadFields {
  Fields fields;
  std::size_t ignored_fields = 0;
};

/// Errors of all: kInvalidType, kMissingParameter, kUnsupportedParameter, kUnsupportedContent, with
/// the member's path in `param`; null is the same as absent. `body` is an object; the limits stand
/// in the errors' words only.
[[nodiscard]] Result<ReadFields<CompletionFields>> read_completion(const nlohmann::json& body,
                                                                   const RequestLimits& limits);
[[nodiscard]] Result<ReadFields<ChatFields>> read_chat(const nlohmann::json& body,
                                                       const RequestLimits& limits);
[[nodiscard]] Result<ReadFields<TokenizeFields>> read_tokenize(const nlohmann::json& body,
                                                               const RequestLimits& limits);
[[nodiscard]] Result<ReadFields<DetokenizeFields>> read_detokenize(const nlohmann::json& body,
                                                                   const RequestLimits& limits);
[[nodiscard]] Result<ReadFields<PlanFields>> read_plan(const nlohmann::json& body,
                                                       const RequestLimits& limits);

}  // namespace kvasir::server
