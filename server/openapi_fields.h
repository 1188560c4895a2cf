// Rows of the field table as JSON Schema. Answers, which have no table, are openapi_answers'.
#pragma once

#include "server/field_table.h"
#include "server/validate.h"

#include <nlohmann/json.hpp>

namespace kvasir::server {

using OrderedJson = nlohmann::ordered_json;

/// The schema of an endpoint's body. It says of each field by itself what the validator says, save
/// that lengths in bytes are given in characters; unknown fields are allowed.
[[nodiscard]] OrderedJson request_schema(FieldUsers user, const ValidationBounds& bounds);

}  // namespace kvasir::server
