#include "server/grpc/request_message.h"

#include "core/check.h"
#include "server/field_table.h"
#include "server/grpc/struct_json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <map>
#include <string>
#include <utility>

namespace kvasir::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

Result<text::ChatMessage> chat_message(const v1::ChatMessage& message, const std::string& path) {
  if (message.role().empty()) {
    return fail(ErrorCode::kMissingParameter, path + ".role must be given", path + ".role");
  }
  if (!message.has_content()) {  // REST takes an absent content for null, and says so
    return fail(ErrorCode::kInvalidType, path + ".content must be a string, not null",
                path + ".content");
  }
  text::ChatMessage out;
  out.role = message.role();
  out.content = message.content();
  if (message.has_name()) out.name = message.name();
  if (message.has_tool_call_id()) out.tool_call_id = message.tool_call_id();
  if (out.role == "function") {  // the older word for a tool's answer, named by its function
    out.role = "tool";
    if (!out.tool_call_id) out.tool_call_id = out.name.value_or("");
  }
  return out;
}

Result<PromptInput> prompt_input(const v1::Prompt& prompt, const std::string& path) {
  switch (prompt.input_case()) {
    case v1::Prompt::kText:
      return prompt.text();
    case v1::Prompt::kTokenIds: {
      const auto& ids = prompt.token_ids().ids();
      return std::vector<std::int64_t>(ids.begin(), ids.end());
    }
    case v1::Prompt::INPUT_NOT_SET:
      break;
  }
  return fail(ErrorCode::kMissingParameter, path + " has neither text nor token_ids", path);
}

/// One row's field of the message into its member of the struct: one function for each type that a
/// member has. A test holds the types of the .proto file to those of the rows.
class RowReader {
 public:
  RowReader(const Message& message, const FieldDescriptor& field)
      : message_(message), reflection_(*message.GetReflection()), field_(field) {}

  void read(std::optional<std::string>& out) {
    if (is_given()) out = reflection_.GetString(message_, &field_);
  }
  void read(std::optional<std::int64_t>& out) {
    if (is_given()) out = reflection_.GetInt64(message_, &field_);
  }
  void read(std::optional<double>& out) {
    if (is_given()) out = reflection_.GetDouble(message_, &field_);
  }
  void read(std::optional<bool>& out) {
    if (is_given()) out = reflection_.GetBool(message_, &field_);
  }
  void read(bool& out) {
    if (is_given()) out = reflection_.GetBool(message_, &field_);
  }
  void read(std::vector<std::string>& out) {
    for (int i = 0; i < size(); ++i)
      out.push_back(reflection_.GetRepeatedString(message_, &field_, i));
  }
  void read(std::vector<std::int64_t>& out) {
    for (int i = 0; i < size(); ++i)
      out.push_back(reflection_.GetRepeatedInt64(message_, &field_, i));
  }

  void read(std::vector<std::pair<std::string, double>>& out) {
    // A protobuf map has no order of its own; ascending ids make equal requests equal.
    std::map<std::int64_t, double> biases;
    for (int i = 0; i < size(); ++i) {
      const Message& entry = reflection_.GetRepeatedMessage(message_, &field_, i);
      const FieldDescriptor* key = entry.GetDescriptor()->map_key();
      const FieldDescriptor* value = entry.GetDescriptor()->map_value();
      biases[entry.GetReflection()->GetInt64(entry, key)] =
          entry.GetReflection()->GetDouble(entry, value);
    }
    for (const auto& [token, bias] : biases) out.emplace_back(std::to_string(token), bias);
  }

  void read(std::vector<PromptInput>& out) { read_items<v1::Prompt>(out, prompt_input); }
  void read(std::vector<text::ChatMessage>& out) { read_items<v1::ChatMessage>(out, chat_message); }
  void read(std::optional<std::vector<text::ChatMessage>>& out) {
    if (size() > 0) read(out.emplace());
  }

  void read(std::string& out) {
    if (!is_given()) return;
    const Message& object = reflection_.GetMessage(message_, &field_);
    auto text = json_text(static_cast<const google::protobuf::Struct&>(object), field_.name());
    if (text) {
      out = std::move(*text);
    } else {
      error_ = std::move(text.error());
    }
  }

  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  /// Fields without presence are as good as given: their default is the rows'.
  [[nodiscard]] bool is_given() const {
    return !field_.has_presence() || reflection_.HasField(message_, &field_);
  }
  [[nodiscard]] int size() const { return reflection_.FieldSize(message_, &field_); }

  template <typename Item, typename Out>
  void read_items(std::vector<Out>& out,
                  Result<Out> (*read_item)(const Item&, const std::string&)) {
    out.reserve(static_cast<std::size_t>(size()));
    for (int i = 0; i < size() && !error_; ++i) {
      const Message& item = reflection_.GetRepeatedMessage(message_, &field_, i);
      Result<Out> read =
          read_item(static_cast<const Item&>(item), field_.name() + "[" + std::to_string(i) + "]");
      if (read) {
        out.push_back(std::move(*read));
      } else {
        error_ = std::move(read.error());
      }
    }
  }

  const Message& message_;
  const Reflection& reflection_;
  const FieldDescriptor& field_;
  std::optional<Error> error_;
};

template <typename Fields>
Result<Fields> read_fields(const Message& message, Fields fields = {}) {
  for (const FieldRow& row : field_table()) {
    if ((row.users & users_of<Fields>()) == 0 || !row.not_on_grpc.empty()) continue;
    const std::string name(row.grpc_name.empty() ? row.name : row.grpc_name);
    const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
    KVASIR_CHECK(field != nullptr, message.GetDescriptor()->full_name() << " has no " << name);
    RowReader reader(message, *field);
    visit_member(row, fields, [&](auto& member) { reader.read(member); });
    if (reader.error()) return tl::unexpected<Error>(*reader.error());
  }
  return fields;
}

/// gRPC's clients want ids and receipts more often than not.
template <typename Fields>
Fields grpc_defaults() {
  Fields fields;
  fields.return_token_ids = true;
  fields.kv_receipt = true;
  return fields;
}

}  // namespace

Result<CompletionFields> completion_fields(const v1::CompleteRequest& request) {
  return read_fields(request, grpc_defaults<CompletionFields>());
}

Result<ChatFields> chat_fields(const v1::ChatRequest& request) {
  return read_fields(request, grpc_defaults<ChatFields>());
}

Result<TokenizeFields> tokenize_fields(const v1::TokenizeRequest& request) {
  return read_fields<TokenizeFields>(request);
}

DetokenizeFields detokenize_fields(const v1::DetokenizeRequest& request) {
  Result<DetokenizeFields> fields = read_fields<DetokenizeFields>(request);
  KVASIR_CHECK(fields.has_value(), "ids alone cannot fail");
  return std::move(*fields);
}

PlanFields plan_fields(const v1::PlanRequest& request) {
  Result<PlanFields> fields = read_fields<PlanFields>(request);
  KVASIR_CHECK(fields.has_value(), "texts and numbers cannot fail");
  return std::move(*fields);
}

}  // namespace kvasir::server
