#include "server/grpc/struct_json.h"

#include "server/shown_value.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <optional>

namespace kvasir::server {
namespace {

using google::protobuf::ListValue;
using google::protobuf::Struct;
using google::protobuf::Value;
using nlohmann::json;

/// Set to the first number that is none in JSON.
using BadNumber = std::optional<double>;

json json_of(const Value& value, BadNumber& bad);

json json_of(double number, BadNumber& bad) {
  constexpr double kExact = 0x1p53;
  if (!std::isfinite(number)) bad = bad.value_or(number);
  if (std::trunc(number) == number && std::abs(number) <= kExact)
    return static_cast<std::int64_t>(number);
  return number;
}

json json_of(const Struct& object, BadNumber& bad) {
  json out = json::object();
  for (const auto& [name, value] : object.fields()) out[name] = json_of(value, bad);
  return out;
}

json json_of(const ListValue& list, BadNumber& bad) {
  json out = json::array();
  for (const Value& value : list.values()) out.push_back(json_of(value, bad));
  return out;
}

json json_of(const Value& value, BadNumber& bad) {
  switch (value.kind_case()) {
    case Value::kNumberValue:
      return json_of(value.number_value(), bad);
    case Value::kStringValue:
      return value.string_value();
    case Value::kBoolValue:
      return value.bool_value();
    case Value::kStructValue:
      return json_of(value.struct_value(), bad);
    case Value::kListValue:
      return json_of(value.list_value(), bad);
    case Value::kNullValue:
    case Value::KIND_NOT_SET:
      break;
  }
  return nullptr;
}

}  // namespace

Result<std::string> json_text(const Struct& object, const std::string& param) {
  if (const std::size_t bytes = object.ByteSizeLong(); bytes > kMaxStructBytes) {
    return fail(ErrorCode::kInvalidValue,
                param + " must be an object of at most " + std::to_string(kMaxStructBytes) +
                    " bytes, not one of " + std::to_string(bytes),
                param);
  }
  BadNumber bad;
  const json value = json_of(object, bad);
  if (bad) {
    return fail(ErrorCode::kInvalidValue,
                param + " must be an object of finite numbers, not one with " + shown_value(*bad),
                param);
  }
  return value.dump();
}

}  // namespace kvasir::server
