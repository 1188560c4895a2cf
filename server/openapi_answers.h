// JSON Schemas of what the REST door answers, and of the messages it is sent.
#pragma once

#include "server/openapi_fields.h"

namespace kvasir::server {

/// By the names that the routes use.
[[nodiscard]] OrderedJson answer_schemas();

}  // namespace kvasir::server
