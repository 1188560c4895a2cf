// Rows of the field table in words: what a field may be, and what it is when absent. Errors of both
// doors and the documents use the same words.
#pragma once

#include "server/field_table.h"

#include <string>

namespace kvasir::server {

/// "a number from 0 to 2", "a string or a list of at most 16 strings, each of 1 to 256 bytes", ...
/// Stands behind "must be".
[[nodiscard]] std::string allowed_text(const FieldRow& row, const RequestLimits& limits);
/// "1.0", "none", ...; empty where there is no default.
[[nodiscard]] std::string default_text(const FieldRow& row);

}  // namespace kvasir::server
