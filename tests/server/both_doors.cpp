#include "tests/server/both_doors.h"

#include "server/http/field_reader.h"
#include "server/http/request_json.h"
#include "server/kv_plan.h"
#include "server/validate.h"

#ifdef KVASIR_WITH_GRPC
#include "server/grpc/request_message.h"

#include <google/protobuf/descriptor.h>
#endif

#include <algorithm>
#include <charconv>

namespace kvasir::server::testing {
namespace {

using nlohmann::json;

DoorVerdict verdict_of(const Error& error) { return {error.code, error.param, error.message}; }

template <typename Fields>
DoorVerdict judge(const Result<Fields>& fields, const RequestLimits& limits) {
  if (!fields) return verdict_of(fields.error());
  const auto judged = validate(*fields, ValidationBounds{kDoorVocabSize, limits});
  return judged ? DoorVerdict{} : verdict_of(judged.error());
}

template <typename Fields>
DoorVerdict judge_read(Result<ReadFields<Fields>> read, const RequestLimits& limits) {
  if (!read) return verdict_of(read.error());
  return judge(Result<Fields>(std::move(read->fields)), limits);
}

#ifdef KVASIR_WITH_GRPC
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

/// Puts JSON values into messages; false where the message's type cannot hold one.
class MessageWriter {
 public:
  explicit MessageWriter(Message& message) : message_(message) {}

  [[nodiscard]] bool set(const std::string& name, const json& value) {
    const FieldDescriptor* field = message_.GetDescriptor()->FindFieldByName(name);
    if (field == nullptr) return false;
    if (value.is_null()) return true;
    if (field->is_map()) return set_map(*field, value);
    if (name == "prompt" && field->is_repeated()) return set_prompts(value);
    if (name == "messages") return set_messages(value);
    if (name == "chat_template_kwargs") return set_struct(*field, value);
    if (!field->is_repeated()) return put(*field, value, /*repeated=*/false);
    if (value.is_string()) return put(*field, value, /*repeated=*/true);
    if (!value.is_array()) return false;
    return std::all_of(value.begin(), value.end(),
                       [&](const json& item) { return put(*field, item, /*repeated=*/true); });
  }

 private:
  template <typename Value, typename Set, typename Add>
  bool put_value(const FieldDescriptor& field, const Value& value, bool repeated, Set setter,
                 Add adder) {
    const google::protobuf::Reflection* reflection = message_.GetReflection();
    if (repeated) {
      (reflection->*adder)(&message_, &field, value);
    } else {
      (reflection->*setter)(&message_, &field, value);
    }
    return true;
  }

  bool put(const FieldDescriptor& field, const json& value, bool repeated) {
    using R = google::protobuf::Reflection;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64: {
        const auto number = exact_integer(value);
        return number && put_value(field, *number, repeated, &R::SetInt64, &R::AddInt64);
      }
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return value.is_number() &&
               put_value(field, value.get<double>(), repeated, &R::SetDouble, &R::AddDouble);
      case FieldDescriptor::CPPTYPE_BOOL:
        return value.is_boolean() &&
               put_value(field, value.get<bool>(), repeated, &R::SetBool, &R::AddBool);
      case FieldDescriptor::CPPTYPE_STRING:
        if (!value.is_string()) return false;
        if (repeated) {
          message_.GetReflection()->AddString(&message_, &field, value.get<std::string>());
        } else {
          message_.GetReflection()->SetString(&message_, &field, value.get<std::string>());
        }
        return true;
      default:
        return false;
    }
  }

  bool set_map(const FieldDescriptor& field, const json& value) {
    if (!value.is_object()) return false;
    for (const auto& member : value.items()) {
      std::int64_t key = 0;
      const std::string& text = member.key();
      const auto parsed = std::from_chars(text.data(), text.data() + text.size(), key);
      if (parsed.ec != std::errc() || std::to_string(key) != text || !member.value().is_number())
        return false;
      Message* entry = message_.GetReflection()->AddMessage(&message_, &field);
      const auto* descriptor = entry->GetDescriptor();
      entry->GetReflection()->SetInt64(entry, descriptor->map_key(), key);
      entry->GetReflection()->SetDouble(entry, descriptor->map_value(),
                                        member.value().get<double>());
    }
    return true;
  }

  static bool set_ids(const json& ids, v1::Prompt& prompt) {
    prompt.mutable_token_ids();
    for (const json& id : ids) {
      const auto number = exact_integer(id);
      if (!number) return false;
      prompt.mutable_token_ids()->add_ids(*number);
    }
    return true;
  }

  bool set_prompts(const json& value) {
    auto& request = dynamic_cast<v1::CompleteRequest&>(message_);
    if (value.is_string()) {
      request.add_prompt()->set_text(value.get<std::string>());
      return true;
    }
    if (!value.is_array()) return false;
    if (!value.empty() && value.front().is_number()) return set_ids(value, *request.add_prompt());
    for (const json& item : value) {
      if (item.type() != value.front().type()) return false;
      v1::Prompt* prompt = request.add_prompt();
      if (item.is_string()) {
        prompt->set_text(item.get<std::string>());
      } else if (!item.is_array() || !set_ids(item, *prompt)) {
        return false;
      }
    }
    return true;
  }

  bool set_messages(const json& value) {
    if (!value.is_array()) return false;
    for (const json& item : value) {
      if (!item.is_object()) return false;
      Message* message = message_.GetReflection()->AddMessage(
          &message_, message_.GetDescriptor()->FindFieldByName("messages"));
      MessageWriter writer(*message);
      for (const auto& member : item.items())
        if (!writer.set(member.key(), member.value())) return false;
    }
    return true;
  }

  static void fill(google::protobuf::Value& out, const json& value) {
    if (value.is_boolean()) {
      out.set_bool_value(value.get<bool>());
    } else if (value.is_number()) {
      out.set_number_value(value.get<double>());
    } else if (value.is_string()) {
      out.set_string_value(value.get<std::string>());
    } else if (value.is_array()) {
      out.mutable_list_value();
      for (const json& item : value) fill(*out.mutable_list_value()->add_values(), item);
    } else if (value.is_object()) {
      fill(*out.mutable_struct_value(), value);
    } else {
      out.set_null_value(google::protobuf::NULL_VALUE);
    }
  }
  static void fill(google::protobuf::Struct& out, const json& object) {
    for (const auto& member : object.items())
      fill((*out.mutable_fields())[member.key()], member.value());
  }

  bool set_struct(const FieldDescriptor& field, const json& value) {
    if (!value.is_object()) return false;
    fill(dynamic_cast<google::protobuf::Struct&>(
             *message_.GetReflection()->MutableMessage(&message_, &field)),
         value);
    return true;
  }

  Message& message_;
};

/// An empty list is no list in protobuf.
bool fill_message(Message& message, const json& body) {
  MessageWriter writer(message);
  for (const auto& member : body.items())
    if (!writer.set(member.key(), member.value())) return false;
  return true;
}

const google::protobuf::Descriptor* message_type(FieldUsers user) {
  switch (user) {
    case kOfCompletions:
      return v1::CompleteRequest::descriptor();
    case kOfChat:
      return v1::ChatRequest::descriptor();
    case kOfTokenize:
      return v1::TokenizeRequest::descriptor();
    case kOfPlan:
      return v1::PlanRequest::descriptor();
    case kOfDetokenize:
      break;
  }
  return v1::DetokenizeRequest::descriptor();
}
#endif

}  // namespace

std::ostream& operator<<(std::ostream& out, const DoorVerdict& verdict) {
  if (!verdict.code) return out << "passes";
  return out << "code " << static_cast<int>(*verdict.code) << " at '" << verdict.param
             << "': " << verdict.message;
}

DoorVerdict rest_verdict(FieldUsers user, const json& body, const RequestLimits& limits) {
  switch (user) {
    case kOfCompletions:
      return judge_read(read_completion(body, limits), limits);
    case kOfChat:
      return judge_read(read_chat(body, limits), limits);
    case kOfTokenize:
      return judge_read(read_tokenize(body, limits), limits);
    case kOfPlan:
      return judge_read(read_plan(body, limits), limits);
    case kOfDetokenize:
      break;
  }
  return judge_read(read_detokenize(body, limits), limits);
}

json plain_request(FieldUsers user) {
  switch (user) {
    case kOfCompletions:
      return {{"prompt", "x"}};
    case kOfChat:
      return {{"messages", json::array({{{"role", "user"}, {"content", "x"}}})}};
    case kOfTokenize:
      return {{"prompt", "x"}};
    case kOfPlan:
      return {{"preset", "llama-2-7b"}};
    case kOfDetokenize:
      break;
  }
  return {{"tokens", {1, 2}}};
}

#ifdef KVASIR_WITH_GRPC
std::optional<DoorVerdict> grpc_verdict(FieldUsers user, const json& body,
                                        const RequestLimits& limits) {
  v1::CompleteRequest complete;
  v1::ChatRequest chat;
  v1::TokenizeRequest tokenize;
  v1::DetokenizeRequest detokenize;
  v1::PlanRequest plan;
  switch (user) {
    case kOfCompletions:
      if (!fill_message(complete, body)) return std::nullopt;
      return judge(completion_fields(complete), limits);
    case kOfChat:
      if (!fill_message(chat, body)) return std::nullopt;
      return judge(chat_fields(chat), limits);
    case kOfTokenize:
      if (!fill_message(tokenize, body) || body.value("messages", json()) == json::array())
        return std::nullopt;
      return judge(tokenize_fields(tokenize), limits);
    case kOfPlan:
      if (!fill_message(plan, body)) return std::nullopt;
      return judge(Result<PlanFields>(plan_fields(plan)), limits);
    case kOfDetokenize:
      break;
  }
  if (!fill_message(detokenize, body) || body.value("tokens", json()).is_null())
    return std::nullopt;
  return judge(Result<DetokenizeFields>(detokenize_fields(detokenize)), limits);
}

std::optional<std::string> grpc_type(FieldUsers user, const FieldRow& row) {
  const FieldDescriptor* field = message_type(user)->FindFieldByName(
      std::string(row.grpc_name.empty() ? row.name : row.grpc_name));
  if (field == nullptr) return "";
  if (field->is_map()) {
    return "map<" + std::string(field->message_type()->map_key()->type_name()) + ", " +
           field->message_type()->map_value()->type_name() + ">";
  }
  const std::string type = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE
                               ? field->message_type()->name()
                               : field->type_name();
  if (field->is_repeated()) return "repeated " + type;
  return (field->has_presence() ? "optional " : "") + type;
}
#else
std::optional<DoorVerdict> grpc_verdict(FieldUsers /*user*/, const json& /*body*/,
                                        const RequestLimits& /*limits*/) {
  return std::nullopt;
}

std::optional<std::string> grpc_type(FieldUsers /*user*/, const FieldRow& /*row*/) {
  return std::nullopt;
}
#endif

}  // namespace kvasir::server::testing
