#include "server/http/input_json.h"

#include <cstdint>
#include <utility>

namespace kvasir::server {
namespace {

using nlohmann::json;

/// A list of token ids at `path`, or nothing with the error set.
std::optional<std::vector<std::int64_t>> read_ids(FieldReader& reader, const json& list,
                                                  const std::string& path) {
  std::vector<std::int64_t> ids;
  ids.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::optional<std::int64_t> id = exact_integer(list[i]);
    if (!id) {
      reader.fail_type(path + "[" + std::to_string(i) + "]",
                       "a token id like the first of its list", list[i]);
      return std::nullopt;
    }
    ids.push_back(*id);
  }
  return ids;
}

/// The parts joined in order.
std::optional<std::string> read_parts(FieldReader& reader, const json& parts,
                                      const std::string& path) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string part_path = path + "[" + std::to_string(i) + "]";
    if (!parts[i].is_object()) {
      reader.fail_type(part_path, "an object", parts[i]);
      return std::nullopt;
    }
    FieldReader part(parts[i], part_path + ".");
    const std::string type = part.string("type").value_or("");
    std::string piece;
    if (!part.error()) {
      if (type.empty()) {
        part.fail(ErrorCode::kMissingParameter, part_path + ".type must be given",
                  part_path + ".type");
      } else if (type != "text") {
        part.fail(ErrorCode::kUnsupportedContent,
                  part_path + ".type must be \"text\", not " + shown_json(parts[i]["type"]),
                  part_path + ".type");
      } else if (auto given = part.string("text")) {
        piece = std::move(*given);
      } else {
        part.fail(ErrorCode::kMissingParameter, part_path + ".text must be given",
                  part_path + ".text");
      }
    }
    if (const auto& error = part.error()) {
      reader.fail(error->code, error->message, error->param);
      return std::nullopt;
    }
    text += piece;
  }
  return text;
}

void read_content(FieldReader& reader, const std::string& path, text::ChatMessage& message) {
  const json* content = reader.find("content");
  const std::string param = path + ".content";
  if (content == nullptr) {
    return reader.fail(ErrorCode::kInvalidType,
                       param + " must be a string or a list of parts, not null", param);
  }
  if (content->is_string()) {
    message.content = content->get<std::string>();
  } else if (content->is_array()) {
    if (content->empty()) {
      return reader.fail(ErrorCode::kInvalidValue, param + " must not be an empty list", param);
    }
    if (auto text = read_parts(reader, *content, param)) message.content = std::move(*text);
  } else {
    reader.fail_type(param, "a string or a list of parts", *content);
  }
}

Result<text::ChatMessage> read_message(const json& value, const std::string& path) {
  text::ChatMessage message;
  FieldReader reader(value, path + ".");
  if (auto role = reader.string("role"); role && !role->empty()) {
    message.role = std::move(*role);
  } else {
    reader.fail(ErrorCode::kMissingParameter, path + ".role must be given", path + ".role");
  }
  message.name = reader.string("name");
  message.tool_call_id = reader.string("tool_call_id");
  if (message.role ==
      "function") {  // the older word for a tool's answer, which names the function only
    message.role = "tool";
    if (!message.tool_call_id) message.tool_call_id = message.name.value_or("");
  }
  reader.refuse("tool_calls", json::array());
  reader.refuse("function_call");
  reader.refuse("audio");
  read_content(reader, path, message);
  if (const auto& error = reader.error()) return tl::unexpected<Error>(*error);
  return message;
}

}  // namespace

void read_prompts(FieldReader& reader, std::string_view name, const std::string& expected,
                  std::vector<PromptInput>& prompts) {
  const json* value = reader.find(name);
  if (value == nullptr) return;  // the validator knows that one is needed
  if (value->is_string()) {
    prompts.emplace_back(value->get<std::string>());
    return;
  }
  if (!value->is_array()) return reader.fail_type(reader.path_of(name), expected, *value);
  if (value->empty()) return;
  if (value->front().is_number()) {
    if (auto ids = read_ids(reader, *value, reader.path_of(name)))
      prompts.emplace_back(std::move(*ids));
    return;
  }
  const bool texts = value->front().is_string();
  for (std::size_t i = 0; i < value->size(); ++i) {
    const json& item = (*value)[i];
    const std::string path = reader.path_of(name) + "[" + std::to_string(i) + "]";
    if (texts && item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else if (!texts && item.is_array()) {
      auto ids = read_ids(reader, item, path);
      if (!ids) return;
      prompts.emplace_back(std::move(*ids));
    } else {
      return reader.fail_type(path, expected, item);
    }
  }
}

std::optional<std::vector<text::ChatMessage>> read_messages(FieldReader& reader,
                                                            std::string_view name,
                                                            const std::string& expected) {
  const json* value = reader.find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) {
    reader.fail_type(reader.path_of(name), expected, *value);
    return std::nullopt;
  }
  std::vector<text::ChatMessage> messages;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const std::string path = reader.path_of(name) + "[" + std::to_string(i) + "]";
    if (!(*value)[i].is_object()) {
      reader.fail_type(path, "an object", (*value)[i]);
      return std::nullopt;
    }
    Result<text::ChatMessage> message = read_message((*value)[i], path);
    if (!message) {
      reader.fail(message.error().code, message.error().message, message.error().param);
      return std::nullopt;
    }
    messages.push_back(std::move(*message));
  }
  return messages;
}

}  // namespace kvasir::server
