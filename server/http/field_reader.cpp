#include "server/http/field_reader.h"

#include "server/shown_value.h"

#include <cmath>
#include <limits>
#include <utility>

namespace kvasir::server {

using nlohmann::json;

FieldReader::FieldReader(const json& object, std::string path)
    : object_(object), path_(std::move(path)) {}

const json* FieldReader::find(std::string_view name) {
  known_.insert(std::string(name));
  if (error_) return nullptr;
  const auto member = object_.find(std::string(name));
  if (member == object_.end() || member->is_null()) return nullptr;
  return &*member;
}

std::optional<std::string> FieldReader::string(std::string_view name, std::string_view expected) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    fail_type(path_of(name), expected, *value);
    return std::nullopt;
  }
  return value->get_ref<const std::string&>();
}

std::optional<std::int64_t> FieldReader::integer(std::string_view name, std::string_view expected) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  std::optional<std::int64_t> number = exact_integer(*value);
  if (!number) fail_type(path_of(name), expected, *value);
  return number;
}

std::optional<double> FieldReader::number(std::string_view name, std::string_view expected) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    fail_type(path_of(name), expected, *value);
    return std::nullopt;
  }
  return value->get<double>();
}

std::optional<bool> FieldReader::boolean(std::string_view name) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    fail_type(path_of(name), "true or false", *value);
    return std::nullopt;
  }
  return value->get<bool>();
}

std::vector<std::int64_t> FieldReader::integers(std::string_view name, std::string_view expected) {
  std::vector<std::int64_t> numbers;
  const json* value = find(name);
  if (value == nullptr) return numbers;
  if (!value->is_array()) {
    fail_type(path_of(name), expected, *value);
    return numbers;
  }
  for (std::size_t i = 0; i < value->size(); ++i) {
    const std::optional<std::int64_t> number = exact_integer((*value)[i]);
    if (!number) {
      fail_type(path_of(name) + "[" + std::to_string(i) + "]", "a 64-bit integer", (*value)[i]);
      return {};
    }
    numbers.push_back(*number);
  }
  return numbers;
}

void FieldReader::refuse(std::string_view name, const json& harmless) {
  const json* value = find(name);
  if (value == nullptr || *value == harmless) return;
  const std::string param = path_of(name);
  const std::string allowed = harmless.is_null() ? "absent" : "absent or " + harmless.dump();
  fail(ErrorCode::kUnsupportedParameter,
       param + " is not supported by this server: it must be " + allowed + ", not " +
           shown_json(*value),
       param);
}

void FieldReader::fail(ErrorCode code, std::string message, std::string param) {
  if (!error_) error_ = Error{code, std::move(message), std::move(param)};
}

void FieldReader::fail_type(const std::string& param, std::string_view expected,
                            const json& value) {
  fail(ErrorCode::kInvalidType,
       param + " must be " + std::string(expected) + ", not " + shown_json(value), param);
}

std::size_t FieldReader::num_ignored() const {
  std::size_t ignored = 0;
  for (const auto& member : object_.items()) ignored += known_.contains(member.key()) ? 0 : 1;
  return ignored;
}

std::optional<std::int64_t> exact_integer(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  // Both ends are out: digits a little past int64 become just these doubles. The least int64 is
  // still taken as plain digits, which are no double.
  if (!(number > -0x1p63 && number < 0x1p63) || std::trunc(number) != number) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

std::string shown_json(const json& value) {
  switch (value.type()) {
    case json::value_t::string:
      return shown_value(value.get_ref<const std::string&>());
    case json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case json::value_t::number_integer:
      return std::to_string(value.get<std::int64_t>());
    case json::value_t::number_unsigned:
      return std::to_string(value.get<std::uint64_t>());
    case json::value_t::number_float:
      return shown_value(value.get<double>());
    case json::value_t::array:
      return "a list";
    case json::value_t::object:
      return "an object";
    case json::value_t::null:
    case json::value_t::binary:
    case json::value_t::discarded:
      break;
  }
  return "null";
}

}  // namespace kvasir::server
