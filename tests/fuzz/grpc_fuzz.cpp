// gRPC message bytes to fields to a verdict, without a channel. The same request written as JSON
// (from the rows of the field table) must get the same verdict from the REST side. The first byte
// chooses the method.
#include "server/grpc/request_message.h"
#include "server/grpc/wire.h"
#include "server/http/json_reader.h"
#include "server/http/request_json.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/verdict.h"

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/support/slice.h>

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

using namespace kvasir;
using namespace kvasir::server;
using fuzz::require;
using nlohmann::json;

namespace {

/// A request as JSON; nothing when JSON cannot say it.
class JsonForm {
 public:
  template <typename Fields>
  static std::optional<json> of(const Fields& fields) {
    JsonForm form;
    const Fields unset{};
    for (const FieldRow& row : field_table()) {
      if ((row.users & users_of<Fields>()) == 0) continue;
      visit_member(row, fields, [&](const auto& value) {
        if (row.required || !is_unset(row, unset, value)) form.add(row.name, value);
      });
    }
    return form.can_be_said_ ? std::optional(std::move(form.body_)) : std::nullopt;
  }

 private:
  /// Messages cannot be compared; they have a row that is required, or are absent.
  template <typename Fields, typename T>
  static bool is_unset(const FieldRow& row, const Fields& unset, const T& value) {
    bool same = false;
    visit_member(row, unset, [&](const auto& absent) {
      if constexpr (std::is_same_v<T, std::optional<std::vector<text::ChatMessage>>>) {
        same = !value.has_value();
      } else if constexpr (std::is_same_v<T, std::vector<text::ChatMessage>>) {
        same = value.empty();
      } else if constexpr (std::is_same_v<decltype(absent), const T&>) {
        same = value == absent;
      }
    });
    return same;
  }

  void set(std::string_view name, json value) {
    const std::size_t dot = name.find('.');
    if (dot == std::string_view::npos) {
      body_[std::string(name)] = std::move(value);
    } else {
      body_[std::string(name.substr(0, dot))][std::string(name.substr(dot + 1))] = std::move(value);
    }
  }

  template <typename T>
  void add(std::string_view name, const std::optional<T>& value) {
    if (value) add(name, *value);
  }
  void add(std::string_view name, double value) {
    can_be_said_ = can_be_said_ && std::isfinite(value);
    set(name, value);
  }
  void add(std::string_view name, std::int64_t value) { set(name, value); }
  void add(std::string_view name, bool value) { set(name, value); }
  void add(std::string_view name, const std::vector<std::string>& value) { set(name, value); }
  void add(std::string_view name, const std::vector<std::int64_t>& value) { set(name, value); }
  void add(std::string_view name, const std::string& value) {
    if (name != "chat_template_kwargs") return set(name, value);
    set(name, json::parse(value));
  }
  void add(std::string_view name, const std::vector<std::pair<std::string, double>>& value) {
    json object = json::object();
    for (const auto& [token, bias] : value) {
      can_be_said_ = can_be_said_ && std::isfinite(bias);
      object[token] = bias;
    }
    set(name, std::move(object));
  }
  void add(std::string_view name, const std::vector<PromptInput>& prompts) {
    json list = json::array();
    for (const PromptInput& prompt : prompts) {
      // JSON has texts or lists of ids, not both at once.
      can_be_said_ = can_be_said_ && prompt.index() == prompts.front().index();
      std::visit([&](const auto& input) { list.push_back(input); }, prompt);
    }
    set(name, std::move(list));
  }
  void add(std::string_view name, const std::vector<text::ChatMessage>& messages) {
    json list = json::array();
    for (const text::ChatMessage& message : messages) {
      json& entry = list.emplace_back(json{{"role", message.role}, {"content", message.content}});
      if (message.name) entry["name"] = *message.name;
      if (message.tool_call_id) entry["tool_call_id"] = *message.tool_call_id;
    }
    set(name, std::move(list));
  }

  json body_ = json::object();
  bool can_be_said_ = true;
};

std::string shown(const Error& error) { return error.param + ": " + error.message; }

template <typename T>
std::string reason(const Result<T>& verdict) {
  return verdict ? "accepted" : shown(verdict.error());
}

void check_same(const GenerateParams& a, const GenerateParams& b) {
  const SamplingParams& s = a.sampling;
  const SamplingParams& t = b.sampling;
  require(s.temperature == t.temperature && s.top_p == t.top_p && s.top_k == t.top_k &&
              s.min_p == t.min_p && s.presence_penalty == t.presence_penalty &&
              s.frequency_penalty == t.frequency_penalty &&
              s.repetition_penalty == t.repetition_penalty && s.logit_bias == t.logit_bias &&
              s.seed == t.seed && a.has_seed == b.has_seed,
          "both doors sample the same");
  require(a.max_tokens == b.max_tokens && a.min_tokens == b.min_tokens &&
              a.num_choices == b.num_choices && a.stop == b.stop &&
              a.stop_token_ids == b.stop_token_ids && a.top_logprobs == b.top_logprobs &&
              a.prompt_logprobs == b.prompt_logprobs && a.priority == b.priority &&
              a.timeout == b.timeout && a.cache_salt == b.cache_salt &&
              a.ignore_eos == b.ignore_eos && a.echo == b.echo &&
              a.skip_special_tokens == b.skip_special_tokens &&
              a.include_stop_str_in_output == b.include_stop_str_in_output,
          "both doors ask the same");
}

/// `read` is what the JSON form's reader gives.
template <typename Fields, typename Read>
void compare(const Fields& fields, const Read& read) {
  const auto verdict = fuzz::judge(fields);
  const std::optional<json> form = JsonForm::of(fields);
  if (!form) return;
  const auto body = read_json(form->dump(), fuzz::request_limits());
  if (!body) return;  // too many values or too deep for a body: limits of JSON's own
  const Result<ReadFields<Fields>> by_json = read(*body, fuzz::request_limits());
  if (!by_json) {
    return require(!verdict, "a request that JSON's reader refuses is refused",
                   shown(by_json.error()));
  }
  const auto other = fuzz::judge(by_json->fields);
  require(verdict.has_value() == other.has_value(), "both doors give the same verdict",
          reason(verdict) + " / " + reason(other));
  if (!verdict) {
    require(
        verdict.error().code == other.error().code && verdict.error().param == other.error().param,
        "both doors name the same field", shown(verdict.error()) + " / " + shown(other.error()));
  } else if constexpr (requires { check_same(*verdict, *other); }) {
    check_same(*verdict, *other);
  }
}

template <typename Message>
bool parse(const std::string& bytes, Message& message) {
  const grpc::Slice slice(bytes);
  const Result<void> parsed = parse_message(grpc::ByteBuffer(&slice, 1), message);
  if (!parsed) require(parsed.error().code == ErrorCode::kInvalidValue, "damage is the client's");
  return parsed.has_value();
}

template <typename Fields, typename Read>
void compare_result(const Result<Fields>& fields, const Read& read) {
  if (!fields) return fuzz::check_error(fields.error());
  compare(*fields, read);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  google::protobuf::SetLogHandler(nullptr);  // a line for each text that is not UTF-8
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::ByteSource source(data, size);
  const std::uint8_t method = source.byte();
  const std::string bytes = source.take_all();
  switch (method % 4U) {
    case 0:
      if (v1::CompleteRequest request; parse(bytes, request))
        compare_result(completion_fields(request), read_completion);
      break;
    case 1:
      if (v1::ChatRequest request; parse(bytes, request))
        compare_result(chat_fields(request), read_chat);
      break;
    case 2:
      if (v1::TokenizeRequest request; parse(bytes, request))
        compare_result(tokenize_fields(request), read_tokenize);
      break;
    default:
      if (v1::DetokenizeRequest request; parse(bytes, request))
        compare(detokenize_fields(request), read_detokenize);
  }
  return 0;
}
