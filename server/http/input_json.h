// The two inputs whose form no type can say: prompts (text or token ids, one or several) and
// messages (content as a string or as parts). Counts and roles are the validator's.
#pragma once

#include "server/http/field_reader.h"
#include "server/request_fields.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::server {

/// Nothing is added when the member is absent, null or an empty list. `expected` stands in the
/// errors.
void read_prompts(FieldReader& reader, std::string_view name, const std::string& expected,
                  std::vector<PromptInput>& prompts);

/// Nothing when the member is absent or null, or in error.
[[nodiscard]] std::optional<std::vector<text::ChatMessage>> read_messages(
    FieldReader& reader, std::string_view name, const std::string& expected);

}  // namespace kvasir::server
