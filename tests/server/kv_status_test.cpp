// What the pool's status says, against the engine's and the model's numbers, and the two forms in
// which it is shown against each other.
#include "server/kv_status.h"

#include "server/http/facts_json.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

#ifdef KVASIR_WITH_GRPC
#include "server/grpc/facts_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>
#endif

#include <chrono>
#include <set>
#include <string>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;
using nlohmann::json;

namespace {

ModelInfo model_info() {
  ModelInfo model;
  model.served_name = std::string("model");
  model.context_tokens = 100;
  model.kernels = std::string("avx2");
  model.num_threads = 3;
  model.kv_budget_bytes = 5'000;
  model.geometry.groups = {
      {.num_layers = 2, .num_kv_heads = 1, .head_dim = 16, .window_tokens = 64},
      {.num_layers = 1, .num_kv_heads = 1, .head_dim = 16, .window_tokens = 0}};
  return model;
}

/// Every count is another.
engine::EngineStatus engine_status() {
  engine::EngineStatus now;
  now.running_sequences = 1;
  now.waiting_sequences = 2;
  now.total_blocks = 40;
  now.free_blocks = 28;
  now.live_blocks = 12;
  now.cached_blocks = 5;
  now.reserved_blocks = 6;
  now.bytes_per_block = 100;
  now.draining = true;
  now.retry_after_seconds = 7;
  std::uint64_t next = 1'000;
  for (std::uint64_t* total :
       {&now.steps_total, &now.prompt_tokens_total, &now.generation_tokens_total,
        &now.computed_tokens_total, &now.recomputed_tokens_total, &now.wasted_tokens_total,
        &now.preemptions_total, &now.taken_blocks_total, &now.returned_blocks_total,
        &now.window_returned_blocks_total, &now.reclaimed_blocks_total, &now.audited_prefixes_total,
        &now.audited_tokens_total, &now.audit_mismatches_total, &now.rejected_total,
        &now.finished_stop_total, &now.finished_length_total, &now.finished_error_total}) {
    *total = next++;
  }
  now.audits_given_up_total = 400;
  now.dropped_blocks_total = 401;
  now.prefix_query_tokens_total = 500;
  now.prefix_hit_tokens_total = 300;
  for (std::uint64_t& cause : now.cancelled_total) cause = next++;
  now.execute_time_total = std::chrono::milliseconds(1500);
  now.step_time_total = std::chrono::milliseconds(2500);
  return now;
}

json status_json() {
  return json::parse(kv_status_body(kv_status(engine_status(), model_info(), Readiness::kReady)));
}

}  // namespace

TEST_CASE("kv_status: each member is the engine's or the model's number", "[server]") {
  const json groups = {{{"layers", 2},
                        {"window_tokens", 64},
                        {"kv_heads", 1},
                        {"head_dim", 16},
                        {"bytes_per_token", 128}},
                       {{"layers", 1},
                        {"window_tokens", 0},
                        {"kv_heads", 1},
                        {"head_dim", 16},
                        {"bytes_per_token", 64}}};
  const json expected = {
      {"object", "kv.status"},
      {"model", "model"},
      {"readiness", "ready"},
      {"draining", true},
      {"running_sequences", 1},
      {"waiting_sequences", 2},
      {"retry_after_seconds", 7},
      {"context_tokens", 100},
      {"kernels", "avx2"},
      {"num_threads", 3},
      {"budget_bytes", 5'000},
      {"live_bytes", 1'200},
      {"cached_bytes", 500},
      {"reserved_bytes", 600},
      {"free_bytes", 2'800},
      {"total_blocks", 40},
      {"live_blocks", 12},
      {"cached_blocks", 5},
      {"reserved_blocks", 6},
      {"free_blocks", 28},
      {"kv_type", "f16"},
      {"block_tokens", 32},
      {"bytes_per_block", 100},
      {"bytes_per_token", 192},
      {"formula",
       "2 x 2 layers (window 64) x 1 KV head x 16 x 2 bytes + 2 x 1 layer x 1 KV head x 16 x 2 "
       "bytes = 192"},
      {"layer_groups", groups},
      {"steps_total", 1'000},
      {"prompt_tokens_total", 1'001},
      {"generation_tokens_total", 1'002},
      {"computed_tokens_total", 1'003},
      {"recomputed_tokens_total", 1'004},
      {"wasted_tokens_total", 1'005},
      {"preemptions_total", 1'006},
      {"taken_blocks_total", 1'007},
      {"returned_blocks_total", 1'008},
      {"window_returned_blocks_total", 1'009},
      {"reclaimed_blocks_total", 1'010},
      {"audited_prefixes_total", 1'011},
      {"audited_tokens_total", 1'012},
      {"audit_mismatches_total", 1'013},
      {"rejected_total", 1'014},
      {"finished_stop_total", 1'015},
      {"finished_length_total", 1'016},
      {"finished_error_total", 1'017},
      {"audits_given_up_total", 400},
      {"dropped_blocks_total", 401},
      {"prefix_query_tokens_total", 500},
      {"prefix_hit_tokens_total", 300},
      {"prefix_miss_tokens_total", 200},
      {"cancelled_total",
       {{"stop_string", 1'018},
        {"client_gone", 1'019},
        {"grpc_cancel", 1'020},
        {"deadline", 1'021},
        {"slow_client", 1'022},
        {"drain", 1'023}}},
      {"execute_seconds_total", 1.5},
      {"step_seconds_total", 2.5}};
  CHECK(status_json() == expected);
}

TEST_CASE("kv_status: every member has a row that says what it means", "[server]") {
  std::set<std::string_view> names;
  for (const auto& row : kv_status_rows()) {
    INFO(row.name);
    CHECK(names.insert(row.name).second);
    CHECK(row.meaning.ends_with('.'));
  }
  // With "object", which REST adds.
  CHECK(names.size() + 1 == status_json().size());
}

#ifdef KVASIR_WITH_GRPC
namespace {

/// Protobuf's JSON writes 64-bit numbers as texts.
json with_numbers(const json& value) {
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    const bool is_number =
        !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    return is_number ? json(std::stoull(text)) : value;
  }
  json out = value;
  if (value.is_structured()) {
    for (json& item : out) item = with_numbers(item);
  }
  return out;
}

json message_json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  REQUIRE(google::protobuf::util::MessageToJsonString(message, &text, options).ok());
  return with_numbers(json::parse(text));
}

}  // namespace

TEST_CASE("kv_status: the message has exactly what JSON has", "[server]") {
  json expected = status_json();
  expected.erase("object");
  const auto message = status_message(kv_status(engine_status(), model_info(), Readiness::kReady));
  CHECK(message_json(message) == expected);
  CHECK(v1::GetStatusResponse::descriptor()->field_count() ==
        static_cast<int>(kv_status_rows().size()));
}

TEST_CASE("KvReceipt: the message has exactly what JSON has", "[server]") {
  KvReceipt receipt;
  std::uint64_t next = 1ULL << 33U;  // past 32 bits
  for (std::uint64_t* count :
       {&receipt.peak_bytes, &receipt.shared_bytes, &receipt.bytes_per_token,
        &receipt.cached_tokens, &receipt.computed_tokens, &receipt.token_passes,
        &receipt.token_passes_without_cache, &receipt.attention_scores,
        &receipt.attention_scores_without_cache, &receipt.preemptions, &receipt.recomputed_tokens,
        &receipt.taken_bytes, &receipt.returned_bytes}) {
    *count = next++;
  }
  receipt.formula = std::string("formula");
  v1::KvReceipt message;
  fill_kv_receipt(receipt, message);
  JsonWriter json_text;
  write_kv_receipt(receipt, json_text);
  CHECK(message_json(message) == json::parse(json_text.text()));
  CHECK(v1::KvReceipt::descriptor()->field_count() == static_cast<int>(kv_receipt_rows().size()));
}
#endif

TEST_CASE("kv_status: while a sequence runs its blocks are live, and afterwards none", "[server]") {
  TestServer server;
  Client client(server);
  server.executor.close_gate();
  Client asking(server);
  asking.send(post_bytes("/v1/completions", R"({"prompt":"xxxxxxxxxxxxxxxxxxxx","max_tokens":2})"));
  REQUIRE(eventually([&] { return server.executor.is_held(); }));
  server.executor.allow_steps(1);
  REQUIRE(eventually(
      [&] { return client.get("/v1/kv/status").json()["generation_tokens_total"] == 1; }));
  json status = client.get("/v1/kv/status").json();
  CHECK(status["running_sequences"] == 1);
  CHECK(status["live_blocks"] == 2);
  CHECK(status["live_bytes"] == 2 * 2048);
  CHECK(status["free_blocks"] == 62);
  CHECK(status["taken_blocks_total"] == 2);
  server.executor.open_gate();
  CHECK(asking.read_response().status == 200);
  REQUIRE(eventually([&] { return server.is_idle(); }));
  status = client.get("/v1/kv/status").json();
  CHECK(status["live_bytes"] == 0);
  CHECK(status["free_blocks"] == 64);
  CHECK(status["cached_blocks"] == 2);
  CHECK(status["returned_blocks_total"] == 2);
}
