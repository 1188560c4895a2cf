// gRPC's requests are read into what REST's are read into: not only the verdicts are equal, the
// fields are.
#ifdef KVASIR_WITH_GRPC
#include "server/grpc/request_message.h"

#include "server/field_table.h"
#include "server/grpc/struct_json.h"
#include "server/grpc/wire.h"
#include "server/http/request_json.h"
#include "server/validate.h"
#include "tests/support/catch.h"

#include <grpcpp/support/slice.h>

#include <cmath>
#include <limits>

using namespace kvasir;
using namespace kvasir::server;
using nlohmann::json;

namespace {

const RequestLimits kLimits;

std::string kwargs_of(const v1::ChatRequest& request) {
  const auto fields = chat_fields(request);
  REQUIRE(fields.has_value());
  return fields->template_kwargs;
}

v1::ChatRequest chat_request() {
  v1::ChatRequest request;
  v1::ChatMessage* message = request.add_messages();
  message->set_role("user");
  message->set_content("x");
  return request;
}

google::protobuf::Value& variable(v1::ChatRequest& request, const std::string& name) {
  return (*request.mutable_chat_template_kwargs()->mutable_fields())[name];
}

}  // namespace

TEST_CASE("request_message: every field is read to where REST reads it", "[server]") {
  v1::CompleteRequest request;
  request.set_model("m");
  request.add_prompt()->set_text("x");
  request.set_max_tokens(1);
  request.set_min_tokens(2);
  request.set_temperature(0.25);
  request.set_top_p(0.5);
  request.set_top_k(3);
  request.set_min_p(0.125);
  request.set_presence_penalty(-0.5);
  request.set_frequency_penalty(0.75);
  request.set_repetition_penalty(1.5);
  (*request.mutable_logit_bias())[20] = 2.5;
  (*request.mutable_logit_bias())[3] = -1.0;
  request.set_seed(-4);
  request.add_stop(std::string("a"));
  request.add_stop(std::string("b"));
  request.add_stop_token_ids(5);
  request.set_n(6);
  request.set_logprobs(7);
  request.set_ignore_eos(true);
  request.set_include_stop_str_in_output(true);
  request.set_skip_special_tokens(false);
  request.set_cache_salt("salt");
  request.set_priority(-8);
  request.set_timeout_ms(9);
  request.set_prompt_logprobs(10);
  request.set_echo(true);
  request.set_return_token_ids(false);
  request.set_kv_receipt(false);
  const auto grpc = completion_fields(request);
  const json body = {{"model", "m"},
                     {"prompt", "x"},
                     {"max_tokens", 1},
                     {"min_tokens", 2},
                     {"temperature", 0.25},
                     {"top_p", 0.5},
                     {"top_k", 3},
                     {"min_p", 0.125},
                     {"presence_penalty", -0.5},
                     {"frequency_penalty", 0.75},
                     {"repetition_penalty", 1.5},
                     {"logit_bias", {{"20", 2.5}, {"3", -1.0}}},
                     {"seed", -4},
                     {"stop", {"a", "b"}},
                     {"stop_token_ids", {5}},
                     {"n", 6},
                     {"logprobs", 7},
                     {"ignore_eos", true},
                     {"include_stop_str_in_output", true},
                     {"skip_special_tokens", false},
                     {"cache_salt", "salt"},
                     {"priority", -8},
                     {"timeout_ms", 9},
                     {"prompt_logprobs", 10},
                     {"echo", true},
                     {"return_token_ids", false},
                     {"kv_receipt", false}};
  const auto rest = read_completion(body, kLimits);
  REQUIRE(grpc.has_value());
  REQUIRE(rest.has_value());
  CHECK(rest->ignored_fields == 0);
  const CompletionFields plain;
  for (const FieldRow& row : field_table()) {
    if ((row.users & kOfCompletions) == 0 || !row.not_on_grpc.empty()) continue;
    INFO(row.name);
    visit_member(row, *grpc, [&](const auto& member) {
      visit_member(row, rest->fields, [&](const auto& other) {
        if constexpr (std::is_same_v<decltype(member), decltype(other)>) {
          if (row.kind == FieldKind::kBiases) return;  // their orders differ
          CHECK(member == other);
        }
      });
      visit_member(row, plain, [&](const auto& untouched) {
        if constexpr (std::is_same_v<decltype(member), decltype(untouched)>) {
          // Save what is false by default and false here, each was changed by the request.
          if (row.name != "return_token_ids") CHECK_FALSE(member == untouched);
        }
      });
    });
  }
  CHECK(grpc->logit_bias == std::vector<std::pair<std::string, double>>{{"3", -1.0}, {"20", 2.5}});
}

TEST_CASE("request_message: ids come unless they are not wanted", "[server]") {
  v1::ChatRequest request = chat_request();
  CHECK(chat_fields(request)->return_token_ids);
  request.set_return_token_ids(false);
  CHECK_FALSE(chat_fields(request)->return_token_ids);
}

TEST_CASE("request_message: template variables are the JSON that REST is sent", "[server]") {
  v1::ChatRequest request = chat_request();
  CHECK(kwargs_of(request).empty());
  request.mutable_chat_template_kwargs();
  CHECK(kwargs_of(request) == "{}");
  variable(request, "b").set_number_value(2);
  variable(request, "a").set_bool_value(true);
  variable(request, "c").set_null_value(google::protobuf::NULL_VALUE);
  variable(request, "d").mutable_list_value()->add_values()->set_number_value(1.5);
  variable(request, "e").set_string_value("\"\xC3\xA9");
  (*variable(request, "f").mutable_struct_value()->mutable_fields())["x"].set_number_value(1e300);
  const json rest_body =
      json::parse(R"({"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":)"
                  R"({"f":{"x":1e300},"e":"\"é","d":[1.5],"c":null,"b":2,"a":true}})");
  CHECK(kwargs_of(request) == read_chat(rest_body, kLimits)->fields.template_kwargs);
}

TEST_CASE("request_message: template variables of very many small values are not looked at",
          "[server]") {
  v1::ChatRequest request = chat_request();
  google::protobuf::ListValue* list = variable(request, "many").mutable_list_value();
  for (std::size_t i = 0; i < kMaxStructBytes; ++i) list->add_values();
  const auto fields = chat_fields(request);
  REQUIRE_FALSE(fields.has_value());
  CHECK(fields.error().param == "chat_template_kwargs");
  CHECK(fields.error().message.find("at most 1048576 bytes") != std::string::npos);
}

TEST_CASE("parse_message: template variables over their bound are refused before they are built",
          "[server]") {
  v1::ChatRequest request = chat_request();
  variable(request, "text").set_string_value(std::string(kMaxStructBytes / 2, 'x'));
  const std::string once = request.SerializeAsString();
  const auto parsed = [](const std::string& wire) {
    const grpc::Slice slice(wire);
    v1::ChatRequest out;
    return parse_message(grpc::ByteBuffer(&slice, 1), out);
  };
  CHECK(parsed(once).has_value());
  // Given twice, protobuf would merge them.
  CHECK_FALSE(parsed(once + once).has_value());
  variable(request, "text").set_string_value(std::string(kMaxStructBytes, 'x'));
  REQUIRE_FALSE(parsed(request.SerializeAsString()).has_value());
  CHECK(parsed(request.SerializeAsString()).error().code == ErrorCode::kInvalidValue);
}

TEST_CASE("request_message: numbers that JSON cannot say are no template variables", "[server]") {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity()}) {
    v1::ChatRequest request = chat_request();
    variable(request, "deep").mutable_list_value()->add_values()->set_number_value(bad);
    const auto fields = chat_fields(request);
    REQUIRE_FALSE(fields.has_value());
    CHECK(fields.error().code == ErrorCode::kInvalidValue);
    CHECK(fields.error().param == "chat_template_kwargs");
  }
}
#endif
