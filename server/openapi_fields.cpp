#include "server/openapi_fields.h"

#include "server/field_text.h"

#include <limits>

namespace kvasir::server {
namespace {

OrderedJson nullable(std::string_view type, const FieldRow& row) {
  if (row.required) return OrderedJson(std::string(type));
  return OrderedJson::array({std::string(type), "null"});
}

/// The least number above an open end that is still above it as a float.
double least(const NumberRange& range) {
  return range.low_is_open ? range.low + double{std::numeric_limits<float>::min()} : range.low;
}

OrderedJson token_ids(const ValidationBounds& bounds) {
  return {{"type", "integer"}, {"minimum", 0}, {"maximum", bounds.vocab_size - 1}};
}

OrderedJson text_schema(const FieldRow& row, const RequestLimits& limits, OrderedJson type) {
  OrderedJson schema{{"type", std::move(type)}};
  if (!row.one_of.empty()) {
    for (const std::string_view word : row.one_of) schema["enum"].push_back(std::string(word));
    schema["enum"].push_back(nullptr);
  }
  if (!row.form.empty()) schema["pattern"] = std::string(row.form);
  if (row.bytes && row.bytes->low > 0) schema["minLength"] = row.bytes->low;
  if (row.bytes) schema["maxLength"] = value_of(row.bytes->high, limits);
  return schema;
}

OrderedJson list_schema(const FieldRow& row, const RequestLimits& limits, OrderedJson item) {
  OrderedJson schema{{"type", "array"}, {"items", std::move(item)}};
  if (row.most_items) schema["maxItems"] = value_of(*row.most_items, limits);
  return schema;
}

OrderedJson prompt_schema(const FieldRow& row, const ValidationBounds& bounds) {
  const OrderedJson text{{"type", "string"}, {"minLength", 1}};
  const OrderedJson ids{{"type", "array"}, {"items", token_ids(bounds)}, {"minItems", 1}};
  OrderedJson texts = list_schema(row, bounds.limits, text);
  OrderedJson id_lists = list_schema(row, bounds.limits, ids);
  texts["minItems"] = id_lists["minItems"] = 1;
  return {{"anyOf", OrderedJson::array({text, ids, std::move(texts), std::move(id_lists)})}};
}

OrderedJson message_list(const FieldRow& row, const RequestLimits& limits) {
  OrderedJson list = list_schema(row, limits, {{"$ref", "#/components/schemas/Message"}});
  list["minItems"] = 1;
  list["type"] = nullable("array", row);
  return list;
}

OrderedJson biases_schema(const FieldRow& row, const RequestLimits& limits) {
  return {{"type", nullable("object", row)},
          {"propertyNames", {{"pattern", "^(0|[1-9][0-9]*)$"}}},
          {"additionalProperties",
           {{"type", "number"}, {"minimum", row.numbers->low}, {"maximum", row.numbers->high}}},
          {"maxProperties", value_of(*row.most_items, limits)}};
}

OrderedJson object_schema(const FieldRow& row, const RequestLimits& limits) {
  OrderedJson names = OrderedJson::object();
  for (const std::string& name : limits.chat_template_kwargs) names[name] = OrderedJson::object();
  return {{"type", nullable("object", row)},
          {"properties", std::move(names)},
          {"additionalProperties", false}};
}

OrderedJson value_schema(const FieldRow& row, const ValidationBounds& bounds) {
  const RequestLimits& limits = bounds.limits;
  switch (row.kind) {
    case FieldKind::kText:
      return text_schema(row, limits, nullable("string", row));
    case FieldKind::kInteger:
      return {{"type", nullable("integer", row)},
              {"format", "int64"},
              {"minimum", row.integers->low},
              {"maximum", value_of(row.integers->high, limits)}};
    case FieldKind::kNumber:
      return {{"type", nullable("number", row)},
              {"minimum", least(*row.numbers)},
              {"maximum", row.numbers->high}};
    case FieldKind::kSwitch:
      return {{"type", nullable("boolean", row)}};
    case FieldKind::kTexts: {
      const OrderedJson text = text_schema(row, limits, "string");
      return {{"anyOf",
               OrderedJson::array({text, list_schema(row, limits, text), {{"type", "null"}}})}};
    }
    case FieldKind::kTokenIds: {
      OrderedJson list = list_schema(row, limits, token_ids(bounds));
      list["type"] = nullable("array", row);
      return list;
    }
    case FieldKind::kBiases:
      return biases_schema(row, limits);
    case FieldKind::kPrompts:
      return prompt_schema(row, bounds);
    case FieldKind::kMessages:
      return message_list(row, limits);
    case FieldKind::kObject:
      return object_schema(row, limits);
    case FieldKind::kOptions:
      return {{"type", nullable("object", row)}, {"properties", OrderedJson::object()}};
    case FieldKind::kAny:
      break;
  }
  if (row.standing == FieldStanding::kAccepted) return OrderedJson::object();
  OrderedJson harmless = OrderedJson::parse(row.harmless);
  if (harmless.is_null()) return {{"type", "null"}};
  return {{"enum", OrderedJson::array({std::move(harmless), nullptr})}};
}

OrderedJson field_schema(const FieldRow& row, const ValidationBounds& bounds) {
  OrderedJson schema = value_schema(row, bounds);
  std::string description;
  if (row.standing == FieldStanding::kAccepted) description = "Accepted, and without a say. ";
  if (row.standing == FieldStanding::kRefused) {
    description = "Not supported: must be " + allowed_text(row, bounds.limits) + ". ";
  }
  schema["description"] = description + std::string(row.meaning);
  const std::string when_absent = default_text(row);
  if (std::holds_alternative<std::string_view>(row.when_absent)) {
    schema["description"] =
        schema["description"].get<std::string>() + " Default: " + when_absent + ".";
  } else if (!when_absent.empty()) {
    schema["default"] = OrderedJson::parse(when_absent);
  }
  return schema;
}

/// /tokenize takes a prompt or messages, and null is absent.
OrderedJson one_input() {
  const auto given = [](const char* name, const char* type) {
    return OrderedJson{{"required", OrderedJson::array({name})},
                       {"properties", {{name, {{"type", type}}}}}};
  };
  return OrderedJson::array({given("prompt", "string"), given("messages", "array")});
}

/// A plan is of a preset, of numbers, or of the served model, and null is absent.
OrderedJson one_source() {
  const OrderedJson absent{{"type", "null"}};
  const OrderedJson given{{"not", absent}};
  const auto required = [](const char* name) {
    return OrderedJson{{"required", OrderedJson::array({name})},
                       {"properties", {{name, {{"not", {{"type", "null"}}}}}}}};
  };
  const OrderedJson no_numbers{
      {"layers", absent}, {"kv_heads", absent}, {"query_heads", absent}, {"head_dim", absent}};
  OrderedJson preset{{"title", "A preset"},
                     {"required", OrderedJson::array({"preset"})},
                     {"properties", no_numbers}};
  preset["properties"]["preset"] = given;
  preset["properties"]["model"] = absent;
  const OrderedJson numbers{
      {"title", "Numbers"},
      {"required", OrderedJson::array({"layers", "head_dim"})},
      {"properties",
       {{"layers", given}, {"head_dim", given}, {"preset", absent}, {"model", absent}}},
      {"anyOf", OrderedJson::array({required("kv_heads"), required("query_heads")})}};
  OrderedJson served{{"title", "The served model"}, {"properties", no_numbers}};
  served["properties"]["preset"] = absent;
  return OrderedJson::array({std::move(preset), numbers, std::move(served)});
}

}  // namespace

OrderedJson request_schema(FieldUsers user, const ValidationBounds& bounds) {
  OrderedJson properties = OrderedJson::object();
  OrderedJson required = OrderedJson::array();
  for (const FieldRow& row : field_table()) {
    if ((row.users & user) == 0) continue;
    const std::size_t dot = row.name.find('.');
    OrderedJson& object = dot == std::string_view::npos
                              ? properties
                              : properties[std::string(row.name.substr(0, dot))]["properties"];
    const std::size_t begin = dot == std::string_view::npos ? 0 : dot + 1;
    object[std::string(row.name.substr(begin))] = field_schema(row, bounds);
    if (row.required) required.push_back(std::string(row.name));
  }
  OrderedJson schema{{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) schema["required"] = std::move(required);
  if (user == kOfTokenize) schema["oneOf"] = one_input();
  if (user == kOfPlan) schema["oneOf"] = one_source();
  return schema;
}

}  // namespace kvasir::server
