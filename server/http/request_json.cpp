#include "server/http/request_json.h"

#include "server/field_table.h"
#include "server/field_text.h"
#include "server/http/field_reader.h"
#include "server/http/input_json.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace kvasir::server {
namespace {

using nlohmann::json;

/// One row's member of the JSON object into its member of the struct: one function for each type
/// that a member has.
class RowReader {
 public:
  /// `name` is the row's inside of the object that `reader` reads.
  RowReader(FieldReader& reader, const FieldRow& row, std::string_view name,
            const RequestLimits& limits)
      : reader_(reader), name_(name), expected_(allowed_text(row, limits)) {}

  void read(std::optional<std::string>& out) { out = reader_.string(name_, expected_); }
  void read(std::optional<std::int64_t>& out) { out = reader_.integer(name_, expected_); }
  void read(std::optional<double>& out) { out = reader_.number(name_, expected_); }
  void read(std::optional<bool>& out) { out = reader_.boolean(name_); }
  void read(bool& out) { out = reader_.boolean(name_).value_or(out); }
  void read(std::vector<std::int64_t>& out) { out = reader_.integers(name_, expected_); }
  void read(std::vector<PromptInput>& out) { read_prompts(reader_, name_, expected_, out); }
  void read(std::optional<std::vector<text::ChatMessage>>& out) {
    out = read_messages(reader_, name_, expected_);
  }
  void read(std::vector<text::ChatMessage>& out) {
    if (auto messages = read_messages(reader_, name_, expected_)) out = std::move(*messages);
  }

  void read(std::vector<std::string>& out) {
    const json* value = reader_.find(name_);
    if (value == nullptr) return;
    if (value->is_string()) {
      out.push_back(value->get<std::string>());
      return;
    }
    if (!value->is_array()) return fail_type(*value);
    for (const json& item : *value) {
      if (!item.is_string()) return fail_type(item);
      out.push_back(item.get<std::string>());
    }
  }

  void read(std::vector<std::pair<std::string, double>>& out) {
    const json* value = reader_.find(name_);
    if (value == nullptr) return;
    if (!value->is_object()) return fail_type(*value);
    for (const auto& member : value->items()) {
      if (!member.value().is_number()) return fail_type(member.value());
      out.emplace_back(member.key(), member.value().get<double>());
    }
  }

  /// An object's text; the parser's limits have bounded it.
  void read(std::string& out) {
    const json* value = reader_.find(name_);
    if (value == nullptr) return;
    if (!value->is_object()) return fail_type(*value);
    out = value->dump();
  }

 private:
  void fail_type(const json& value) { reader_.fail_type(reader_.path_of(name_), expected_, value); }

  FieldReader& reader_;
  const std::string_view name_;
  const std::string expected_;
};

/// The objects that the rows' names speak of: the body itself, and those that rows with a dot are
/// inside of.
class Objects {
 public:
  explicit Objects(const json& body) : body_(body) {}

  [[nodiscard]] FieldReader& body() { return body_; }

  /// Opens what a row of kOptions names. False when it is absent; then its members are too.
  bool open(const FieldRow& row, const RequestLimits& limits) {
    const json* value = body_.find(row.name);
    if (value == nullptr) return false;
    if (!value->is_object()) {
      body_.fail_type(std::string(row.name), allowed_text(row, limits), *value);
      return false;
    }
    inner_.emplace(row.name, FieldReader(*value, std::string(row.name) + "."));
    return true;
  }

  /// The object that has the row's field, or null when that object is absent.
  [[nodiscard]] FieldReader* object_of(const FieldRow& row) {
    const std::size_t dot = row.name.find('.');
    if (dot == std::string_view::npos) return &body_;
    const auto found = inner_.find(row.name.substr(0, dot));
    return found == inner_.end() ? nullptr : &found->second;
  }

  /// The first failure in the order of reading is the body's: those inside are handed over at once.
  void hand_over(const FieldReader& object) {
    if (const auto& error = object.error(); error && &object != &body_)
      body_.fail(error->code, error->message, error->param);
  }

 private:
  FieldReader body_;
  std::map<std::string_view, FieldReader> inner_;
};

template <typename Fields>
void read_row(const FieldRow& row, const RequestLimits& limits, Objects& objects, Fields& fields) {
  FieldReader* object = objects.object_of(row);
  if (object == nullptr) return;
  const std::string_view name = row.name.substr(row.name.find('.') + 1);
  if (row.standing == FieldStanding::kAccepted) return object->accept(name);
  if (row.standing == FieldStanding::kRefused)
    return object->refuse(name, json::parse(row.harmless));
  if (row.kind == FieldKind::kOptions) {
    const bool given = objects.open(row, limits);
    visit_member(row, fields, [&](auto& member) {
      if constexpr (std::is_same_v<decltype(member), bool&>) member = given;
    });
    return;
  }
  visit_member(row, fields,
               [&](auto& member) { RowReader(*object, row, name, limits).read(member); });
  objects.hand_over(*object);
}

template <typename Fields>
Result<ReadFields<Fields>> read_fields(const json& body, const RequestLimits& limits) {
  ReadFields<Fields> read;
  Objects objects(body);
  for (const FieldRow& row : field_table()) {
    if ((row.users & users_of<Fields>()) != 0) read_row(row, limits, objects, read.fields);
    if (const auto& error = objects.body().error()) return tl::unexpected<Error>(*error);
  }
  read.ignored_fields = objects.body().num_ignored();
  return read;
}

}  // namespace

Result<ReadFields<CompletionFields>> read_completion(const json& body,
                                                     const RequestLimits& limits) {
  return read_fields<CompletionFields>(body, limits);
}

Result<ReadFields<ChatFields>> read_chat(const json& body, const RequestLimits& limits) {
  return read_fields<ChatFields>(body, limits);
}

Result<ReadFields<TokenizeFields>> read_tokenize(const json& body, const RequestLimits& limits) {
  return read_fields<TokenizeFields>(body, limits);
}

Result<ReadFields<PlanFields>> read_plan(const json& body, const RequestLimits& limits) {
  return read_fields<PlanFields>(body, limits);
}

Result<ReadFields<DetokenizeFields>> read_detokenize(const json& body,
                                                     const RequestLimits& limits) {
  const auto tokens = body.find("tokens");
  auto read = read_fields<DetokenizeFields>(body, limits);
  if (read && (tokens == body.end() || tokens->is_null()))
    return fail(ErrorCode::kMissingParameter, "tokens must be given", "tokens");
  return read;
}

}  // namespace kvasir::server
