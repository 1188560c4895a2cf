// Protobuf messages to the fields that the validator judges, by reflection over the rows of the
// field table, so that gRPC has every field that REST has. Only types are looked at here; ranges
// are the validator's, so that both doors give the same verdict.
#pragma once

#include "core/result.h"
#include "kvasir/v1/inference.pb.h"
#include "server/request_fields.h"

namespace kvasir::server {

/// Errors: kMissingParameter for a prompt without input.
[[nodiscard]] Result<CompletionFields> completion_fields(const v1::CompleteRequest& request);
/// Errors: kMissingParameter for a message without role, kInvalidType for one without content,
/// kInvalidValue for template variables that no JSON can say.
[[nodiscard]] Result<ChatFields> chat_fields(const v1::ChatRequest& request);
[[nodiscard]] Result<TokenizeFields> tokenize_fields(const v1::TokenizeRequest& request);
[[nodiscard]] DetokenizeFields detokenize_fields(const v1::DetokenizeRequest& request);
[[nodiscard]] PlanFields plan_fields(const v1::PlanRequest& request);

}  // namespace kvasir::server
