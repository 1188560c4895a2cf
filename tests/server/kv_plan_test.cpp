// The calculator behind its doors: what must be together, where defaults come from, and that REST
// and gRPC answer the same members with the same values.
#include "server/kv_plan.h"

#include "server/kv_plan_json.h"
#include "tests/server/both_doors.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

#ifdef KVASIR_WITH_GRPC
#include "server/grpc/kv_plan_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#endif

#include <nlohmann/json.hpp>

#include <string>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;
using nlohmann::json;

namespace {

const RequestLimits kLimits;

/// The field at fault over both doors, or "".
std::string fault_of(const json& body) {
  const DoorVerdict rest = rest_verdict(kOfPlan, body);
  if (const auto grpc = grpc_verdict(kOfPlan, body)) CHECK(*grpc == rest);
  return rest.param;
}

PlanFields numbers() {
  PlanFields fields;
  fields.layers = 2;
  fields.kv_heads = 3;
  fields.head_dim = 5;
  return fields;
}

/// A served model: 15 windowed layers and 3 that see everything.
PlannedModel served() {
  PlannedModel own;
  own.model.name = "served";
  own.model.groups = {{15, 1, 256, 512}, {3, 1, 256, 0}};
  own.model.query_heads = 4;
  own.model.context_tokens = 2048;
  own.model.weights_bytes = 1000;
  own.model.weights_from = "tensors of the model file";
  own.type = kvcache::KvType::kF32;
  own.budget_bytes = 1ULL << 30U;
  own.largest_chunk = 256;
  return own;
}

kvcache::KvPlan planned(const PlanFields& fields) {
  REQUIRE(validate(fields, ValidationBounds{kDoorVocabSize, kLimits}).has_value());
  auto plan = make_plan(fields, served());
  REQUIRE(plan.has_value());
  return std::move(*plan);
}

#ifdef KVASIR_WITH_GRPC
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

json json_of(const Message& message);

json json_of(const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (field.has_presence() && !reflection.HasField(message, &field)) return nullptr;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(message, &field);
    default:
      break;
  }
  return json_of(reflection.GetMessage(message, &field));
}

/// What a message says, absent fields as null.
json json_of(const Message& message) {
  json object = json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    json& member = object[field.name()];
    if (!field.is_repeated()) {
      member = json_of(message, field);
      continue;
    }
    member = json::array();
    for (int k = 0; k < message.GetReflection()->FieldSize(message, &field); ++k)
      member.push_back(json_of(message.GetReflection()->GetRepeatedMessage(message, &field, k)));
  }
  return object;
}
#endif

}  // namespace

TEST_CASE("kv_plan: a model is described in one way", "[server]") {
  CHECK(fault_of({{"preset", "llama-2-7b"}}).empty());
  CHECK(fault_of({{"model", "m"}}).empty());
  CHECK(fault_of(json::object()).empty());
  CHECK(fault_of({{"preset", "llama-2-7b"}, {"model", "m"}}) == "preset");
  for (const char* number : {"layers", "kv_heads", "query_heads", "head_dim"}) {
    CHECK(fault_of({{"preset", "llama-2-7b"}, {number, 8}}) == number);
    CHECK(fault_of({{"model", "m"}, {number, 8}}) == number);
  }
  const DoorVerdict verdict = rest_verdict(kOfPlan, {{"model", "m"}, {"layers", 8}});
  CHECK(verdict.code == ErrorCode::kInvalidValue);
  CHECK(verdict.message == "layers must be absent beside model, not 8");
}

TEST_CASE("kv_plan: numbers are all there, with one kind of heads at least", "[server]") {
  CHECK(fault_of({{"layers", 2}, {"kv_heads", 2}, {"head_dim", 8}}).empty());
  CHECK(fault_of({{"layers", 2}, {"query_heads", 2}, {"head_dim", 8}}).empty());
  CHECK(fault_of({{"layers", 2}, {"head_dim", 8}}) == "kv_heads");
  CHECK(fault_of({{"layers", 2}, {"kv_heads", 8}}) == "head_dim");
  CHECK(fault_of({{"kv_heads", 2}, {"head_dim", 8}}) == "layers");
  CHECK(rest_verdict(kOfPlan, {{"head_dim", 8}}).code == ErrorCode::kMissingParameter);
  const auto heads = [](int kv_heads, int query_heads) {
    return json{
        {"layers", 2}, {"kv_heads", kv_heads}, {"query_heads", query_heads}, {"head_dim", 8}};
  };
  CHECK(fault_of(heads(3, 9)).empty());
  CHECK(fault_of(heads(3, 8)) == "query_heads");
  CHECK(fault_of(heads(9, 3)) == "query_heads");
}

TEST_CASE("kv_plan: a pattern needs a window, and its form", "[server]") {
  CHECK(fault_of({{"window_tokens", 8}, {"window_pattern", "5:1"}}).empty());
  CHECK(fault_of({{"window_tokens", 8}}).empty());
  CHECK(fault_of({{"window_pattern", "5:1"}}) == "window_pattern");
  CHECK(fault_of({{"window_tokens", 0}, {"window_pattern", "5:1"}}) == "window_pattern");
  CHECK(fault_of({{"window_tokens", 8}, {"window_pattern", "0:1"}}) == "window_pattern");
  CHECK(fault_of({{"window_tokens", 8}, {"window_pattern", ""}}) == "window_pattern");
}

TEST_CASE("kv_plan: defaults are the preset's, of numbers, or the served model's", "[server]") {
  PlanFields fields;
  const kvcache::KvPlan own = planned(fields);
  CHECK(own.asked.model.name == "served");
  CHECK(own.asked.context_tokens == 2048);
  CHECK(own.asked.type == kvcache::KvType::kF32);
  CHECK(own.asked.budget_bytes == 1ULL << 30U);
  CHECK(own.charge.largest_chunk == 256);
  CHECK(own.groups.size() == 2);
  CHECK(own.ratio_to_weights.has_value());

  fields.preset = "llama-3-8b";
  const kvcache::KvPlan preset = planned(fields);
  CHECK(preset.asked.model.name == "llama-3-8b");
  CHECK(preset.asked.context_tokens == 8192);
  CHECK(preset.asked.type == kvcache::KvType::kF16);
  CHECK_FALSE(preset.asked.budget_bytes.has_value());
  CHECK(preset.asked.batch == 1);
  CHECK(preset.asked.grouping);

  const kvcache::KvPlan made_up = planned(numbers());
  CHECK(made_up.asked.model.name.empty());
  CHECK(made_up.asked.context_tokens == 4096);
  CHECK(made_up.asked.model.query_heads == 3);
  CHECK_FALSE(made_up.ratio_to_weights.has_value());
  fields = numbers();
  fields.kv_heads.reset();
  fields.query_heads = 7;
  CHECK(planned(fields).num_kv_heads == 7);
}

TEST_CASE("kv_plan: every field reaches the plan", "[server]") {
  PlanFields fields = numbers();
  fields.query_heads = 6;
  fields.kv_type = "bf16";
  fields.grouping = false;
  fields.context_tokens = 100;
  fields.batch = 9;
  fields.window_tokens = 40;
  fields.window_pattern = "1:1";
  fields.prompt_tokens = 4;
  fields.new_tokens = 6;
  fields.budget_bytes = 100'000;
  const kvcache::KvPlan plan = planned(fields);
  CHECK(plan.asked.type == kvcache::KvType::kBf16);
  CHECK(plan.num_kv_heads == 6);
  CHECK(plan.bytes_per_token == 2ULL * 2 * 6 * 5 * 2);
  CHECK(plan.bytes_per_sequence == 2ULL * 6 * 5 * 2 * (40 + 100));
  CHECK(plan.total_bytes == 9 * plan.bytes_per_sequence);
  CHECK(plan.sequences_in_budget == 100'000 / plan.bytes_per_sequence);
  CHECK(plan.token_passes_with_cache == 9);
  CHECK(plan.token_passes_without_cache == 39);
  CHECK(plan.attention_scores_without_cache == 155);  // of nine tokens at most, inside the window
}

TEST_CASE("kv_plan: prompt and new tokens fill the context where they are not given", "[server]") {
  const auto tokens = [](std::optional<std::int64_t> prompt, std::optional<std::int64_t> added,
                         std::int64_t context) {
    PlanFields fields = numbers();
    fields.context_tokens = context;
    fields.prompt_tokens = prompt;
    fields.new_tokens = added;
    const kvcache::KvPlan plan = planned(fields);
    return std::pair(plan.asked.prompt_tokens, plan.asked.new_tokens);
  };
  using Pair = std::pair<std::uint64_t, std::uint64_t>;
  CHECK(tokens({}, {}, 100) == Pair(50, 50));
  CHECK(tokens({}, {}, 101) == Pair(51, 50));
  CHECK(tokens({}, {}, 1) == Pair(1, 1));
  CHECK(tokens(30, {}, 100) == Pair(30, 70));
  CHECK(tokens({}, 30, 100) == Pair(70, 30));
  CHECK(tokens({}, 0, 100) == Pair(100, 0));
  CHECK(tokens(200, {}, 100) == Pair(200, 1));
  CHECK(tokens({}, 200, 100) == Pair(1, 200));
  CHECK(tokens(200, 300, 100) == Pair(200, 300));
  CHECK(tokens({}, {}, 1LL << 24U) == Pair(1U << 20U, 1U << 20U));
}

TEST_CASE("kv_plan: sums over what JSON's readers hold are refused by field", "[server]") {
  PlanFields fields;
  fields.preset = "llama-2-7b";
  fields.context_tokens = 1LL << 24U;
  fields.batch = 1LL << 20U;
  REQUIRE(validate(fields, ValidationBounds{kDoorVocabSize, kLimits}).has_value());
  const auto plan = make_plan(fields, served());
  REQUIRE_FALSE(plan.has_value());
  CHECK(plan.error().param == "batch");
  CHECK(plan.error().code == ErrorCode::kInvalidValue);
}

TEST_CASE("kv_plan: the JSON object has what was asked, the answer and null for the unknown",
          "[server]") {
  PlanFields fields;
  fields.preset = "llama-2-7b";
  fields.prompt_tokens = 4;
  fields.new_tokens = 6;
  const json answer = json::parse(kv_plan_json(planned(fields)));
  CHECK(answer["object"] == "kv.plan");
  CHECK(answer["model"] == "llama-2-7b");
  CHECK(answer["bytes_per_token"] == 524'288);
  CHECK(answer["total_bytes"] == 2'147'483'648);
  CHECK(answer["weights_bytes"] == 13'476'831'232);
  CHECK(answer["weights_from"] == "6738415616 published parameters x 2 bytes (f16)");
  CHECK(answer["ratio_to_weights"].get<double>() == Approx(0.159347));
  CHECK(answer["sequences_in_budget"].is_null());
  CHECK(answer["attention_scores_without_cache"] == 155);
  CHECK(answer["formula"] == "2 x 32 layers x 32 KV heads x 128 x 2 bytes = 524288");
  CHECK(answer["charged"]["blocks_per_sequence"] == 128);
  CHECK(answer["groups"][0]["window_tokens"] == 0);

  const json made_up = json::parse(kv_plan_json(planned(numbers())));
  CHECK(made_up["model"].is_null());
  CHECK(made_up["weights_bytes"].is_null());
  CHECK(made_up["weights_from"].is_null());
  CHECK(made_up["ratio_to_weights"].is_null());
  CHECK(made_up["budget_bytes"].is_null());
  CHECK(made_up["charged"]["sequences_in_budget"].is_null());
}

#ifdef KVASIR_WITH_GRPC
TEST_CASE("kv_plan: gRPC answers what REST answers", "[server]") {
  PlanFields preset;
  preset.preset = "smollm2-135m";
  preset.budget_bytes = 1LL << 32U;
  for (const PlanFields& fields : {PlanFields{}, preset, numbers()}) {
    const kvcache::KvPlan plan = planned(fields);
    json rest = json::parse(kv_plan_json(plan));
    CHECK(rest.erase("object") == 1);
    CHECK(json_of(plan_message(plan)) == rest);
  }
}
#endif

TEST_CASE("kv_plan: the served model is the default, by its names only", "[server]") {
  const TestEngine engine;
  const auto plan = served_plan({}, *engine.service);
  REQUIRE(plan.has_value());
  CHECK(plan->asked.model.name == "tiny/model");
  CHECK(plan->bytes_per_token == 2 * 16 * 4);
  CHECK(plan->grouping_ratio == 4);
  CHECK(plan->asked.model.weights_bytes == 4096U);
  CHECK(plan->sequences_in_budget.has_value());
  PlanFields fields;
  fields.model = "alias";
  CHECK(served_plan(fields, *engine.service).has_value());
  fields.model = "other";
  CHECK(served_plan(fields, *engine.service).error().code == ErrorCode::kModelNotFound);
  fields.batch = 0;  // its own field first
  CHECK(served_plan(fields, *engine.service).error().param == "batch");
}
