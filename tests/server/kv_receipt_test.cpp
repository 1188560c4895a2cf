// What answers say they cost, against numbers made by hand: one layer of one head, 128 bytes a
// token, blocks of 16 tokens and 2,048 bytes. And all receipts together against the pool.
#include "server/kv_receipt.h"

#include "tests/server/test_server.h"
#include "tests/support/catch.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;
using nlohmann::json;

namespace {

constexpr std::uint64_t kBlock = 2048;

engine::SequenceUsage sequence(std::uint32_t prompt, std::uint32_t generated) {
  engine::SequenceUsage usage;
  usage.prompt_tokens = prompt;
  usage.completion_tokens = generated;
  usage.computed_tokens = prompt + generated - 1;
  return usage;
}

kvcache::KvGeometry layers(std::vector<std::uint32_t> windows) {
  kvcache::KvGeometry geometry = tiny_geometry();
  geometry.groups.clear();
  for (const std::uint32_t window : windows) {
    geometry.groups.push_back(
        {.num_layers = 1, .num_kv_heads = 1, .head_dim = 16, .window_tokens = window});
  }
  return geometry;
}

CompletionFields completion(std::string prompt, std::int64_t max_tokens) {
  CompletionFields fields;
  fields.prompts = {std::move(prompt)};
  fields.max_tokens = max_tokens;
  fields.ignore_eos = true;
  fields.kv_receipt = true;
  return fields;
}

std::shared_ptr<Generation> started(TestEngine& test, const CompletionFields& fields) {
  auto generation = test.service->complete(fields, [] {});
  REQUIRE(generation.has_value());
  return *generation;
}

/// The receipt of an answer, once all of it is there.
KvReceipt receipt_of(Generation& generation) {
  REQUIRE(eventually([&] {
    static_cast<void>(generation.poll());
    return generation.done();
  }));
  REQUIRE(generation.usage().kv_cache.has_value());
  return *generation.usage().kv_cache;
}

KvReceipt receipt(TestEngine& test, const CompletionFields& fields) {
  return receipt_of(*started(test, fields));
}

json as_json(const KvReceipt& receipt) {
  json out;
  for_each_fact(receipt, kv_receipt_rows(), [&out](std::string_view name, const auto& value) {
    if constexpr (std::is_convertible_v<decltype(value), json>) out[std::string(name)] = value;
  });
  return out;
}

/// 1 + 2 + ... + count
constexpr std::uint64_t triangle(std::uint64_t count) { return count * (count + 1) / 2; }

}  // namespace

TEST_CASE(
    "KvReceiptSum: a prompt of 4 and six tokens are 9 passes against 39, 45 scores against 155",
    "[server]") {
  for (const std::uint32_t num_layers : {1U, 3U}) {
    const kvcache::KvGeometry geometry = layers(std::vector<std::uint32_t>(num_layers, 0));
    KvReceiptSum sum(geometry);
    engine::SequenceUsage usage = sequence(4, 6);
    usage.attention_scores_all_layers = std::uint64_t{45} * num_layers;
    sum.add(usage);
    CHECK(sum.receipt().token_passes == 9);
    CHECK(sum.receipt().token_passes_without_cache == 39);
    CHECK(sum.receipt().attention_scores == 45);
    CHECK(sum.receipt().attention_scores_without_cache == 155);
    sum.add(usage);  // another sequence
    CHECK(sum.receipt().token_passes_without_cache == 78);
    CHECK(sum.receipt().attention_scores_without_cache == 310);
  }
}

TEST_CASE("KvReceiptSum: where windows differ, scores are the mean over the layers rounded down",
          "[server]") {
  // All of 4 tokens: 10 pairs; a window of two: 1 + 2 + 2 + 2 = 7; (10 + 7) / 2 = 8.5.
  const kvcache::KvGeometry geometry = layers({0, 2});
  KvReceiptSum sum(geometry);
  engine::SequenceUsage usage = sequence(4, 1);
  usage.attention_scores_all_layers = 17;
  sum.add(usage);
  CHECK(sum.receipt().attention_scores == 8);
  CHECK(sum.receipt().attention_scores_without_cache == 8);
  sum.add(usage);  // the halves of two sequences are a whole
  CHECK(sum.receipt().attention_scores == 17);
  CHECK(sum.receipt().attention_scores_without_cache == 17);
  CHECK(sum.receipt().formula ==
        "2 x 1 layer x 1 KV head x 16 x 4 bytes + "
        "2 x 1 layer (window 2) x 1 KV head x 16 x 4 bytes = 256");
}

TEST_CASE(
    "KvReceiptSum: a prompt alone counts as computed once, an echo without a model as nothing",
    "[server]") {
  const kvcache::KvGeometry geometry = tiny_geometry();
  KvReceiptSum scored(geometry);
  engine::SequenceUsage usage = sequence(4, 0);
  usage.computed_tokens = 4;
  scored.add(usage);
  CHECK(scored.receipt().token_passes_without_cache == 4);
  CHECK(scored.receipt().attention_scores_without_cache == 10);
  KvReceiptSum echoed(geometry);
  usage.computed_tokens = 0;
  echoed.add(usage);
  CHECK(echoed.receipt().token_passes_without_cache == 0);
  CHECK(echoed.receipt().attention_scores_without_cache == 0);
}

TEST_CASE("KvReceipt: a cold answer computes every token once", "[server]") {
  TestEngine test;
  // 20 + 5 - 1 tokens in two blocks; without a cache prompts of 20 to 24 tokens.
  CHECK(as_json(receipt(test, completion(std::string(20, 'x'), 5))) ==
        json({{"peak_bytes", 2 * kBlock},
              {"shared_bytes", 0},
              {"bytes_per_token", 128},
              {"formula", "2 x 1 layer x 1 KV head x 16 x 4 bytes = 128"},
              {"cached_tokens", 0},
              {"computed_tokens", 24},
              {"token_passes", 24},
              {"token_passes_without_cache", 20 + 21 + 22 + 23 + 24},
              {"attention_scores", triangle(24)},
              {"attention_scores_without_cache",
               triangle(20) + triangle(21) + triangle(22) + triangle(23) + triangle(24)},
              {"preemptions", 0},
              {"recomputed_tokens", 0},
              {"taken_bytes", 2 * kBlock},
              {"returned_bytes", 2 * kBlock}}));
}

TEST_CASE("KvReceipt: a warm answer shares the full block and computes what is new", "[server]") {
  TestEngine test;
  static_cast<void>(receipt(test, completion(std::string(20, 'x'), 5)));
  const KvReceipt warm = receipt(test, completion(std::string(20, 'x'), 5));
  // All of the prompt but its last token is there: a full block, and three tokens to copy.
  CHECK(warm.cached_tokens == 19);
  CHECK(warm.computed_tokens == 5);
  CHECK(warm.token_passes == 5);
  CHECK(warm.attention_scores == triangle(24) - triangle(19));
  CHECK(warm.token_passes_without_cache == 110);
  // The block that it copies from is held until the copy is used.
  CHECK(warm.peak_bytes == 3 * kBlock);
  CHECK(warm.shared_bytes == 2 * kBlock);
  CHECK(warm.taken_bytes == warm.returned_bytes);
}

TEST_CASE("KvReceipt: four choices hold their prompt's full block once", "[server]") {
  TestEngine test;
  CompletionFields fields = completion(std::string(20, 'x'), 5);
  fields.n = 4;
  const KvReceipt forked = receipt(test, fields);
  // The first computes the prompt; each of the others holds its full block, copies three tokens of
  // the second and computes the prompt's last one.
  CHECK(forked.cached_tokens == 3 * 19);
  CHECK(forked.computed_tokens == 24 + 3 * 5);
  CHECK(forked.attention_scores == triangle(24) + 3 * (triangle(24) - triangle(19)));
  CHECK(forked.token_passes_without_cache == 4 * 110);
  CHECK(forked.peak_bytes == 4 * 2 * kBlock);
  CHECK(forked.shared_bytes == 3 * kBlock);
  CHECK(forked.taken_bytes == 5 * kBlock);
  CHECK(forked.returned_bytes == 5 * kBlock);
}

TEST_CASE("KvReceipt: several prompts add up", "[server]") {
  TestEngine test;
  CompletionFields fields = completion(std::string(20, 'x'), 5);
  fields.prompts.emplace_back(std::string(30, 'y'));
  const KvReceipt both = receipt(test, fields);
  CHECK(both.computed_tokens == 24 + 34);
  CHECK(both.attention_scores == triangle(24) + triangle(34));
  CHECK(both.peak_bytes == (2 + 3) * kBlock);
  CHECK(both.taken_bytes == both.returned_bytes);
}

TEST_CASE("KvReceipt: together receipts are what the pool counted, with preemptions and forks",
          "[server]") {
  TestEngine test(/*num_blocks=*/9);
  test.executor.close_gate();  // so that all come before the first step
  std::vector<std::shared_ptr<Generation>> answers;
  for (int i = 0; i < 6; ++i) {
    CompletionFields fields = completion(std::string(18, static_cast<char>('a' + i % 3)), 60);
    if (i == 5) fields.n = 3;
    answers.push_back(started(test, fields));
  }
  test.executor.open_gate();
  KvReceipt sum;
  for (const auto& answer : answers) {
    const KvReceipt one = receipt_of(*answer);
    CHECK(one.token_passes == one.computed_tokens);  // those after a preemption too
    sum.computed_tokens += one.computed_tokens;
    sum.recomputed_tokens += one.recomputed_tokens;
    sum.cached_tokens += one.cached_tokens;
    sum.preemptions += one.preemptions;
    sum.taken_bytes += one.taken_bytes;
    sum.returned_bytes += one.returned_bytes;
  }
  REQUIRE(eventually([&] { return test.is_idle(); }));
  const engine::EngineStatus pool = test.engine->status();
  CHECK(sum.preemptions > 0);
  CHECK(sum.recomputed_tokens > 0);
  CHECK(sum.computed_tokens == pool.computed_tokens_total);
  CHECK(sum.recomputed_tokens == pool.recomputed_tokens_total);
  CHECK(sum.preemptions == pool.preemptions_total);
  CHECK(sum.taken_bytes == pool.taken_blocks_total * kBlock);
  CHECK(sum.returned_bytes == pool.returned_blocks_total * kBlock);
  CHECK(sum.taken_bytes - sum.returned_bytes == pool.live_blocks * kBlock);
  CHECK(pool.live_blocks == 0);
  // Eight sequences of 18 + 60 - 1 tokens: what was neither cached at first nor computed again was
  // computed once.
  CHECK(sum.computed_tokens - sum.recomputed_tokens + sum.cached_tokens == 8 * 77);
}

TEST_CASE("KvReceipt: over REST it comes where it is asked for, and with the usage", "[server]") {
  for (const bool by_default : {false, true}) {
    TestEngineOptions options;
    options.service.kv_receipt = by_default;
    TestServer server(options);
    Client client(server);
    const auto has = [&client](json body, const json& more) {
      body.update(more);
      const bool chat = body.contains("messages");
      const ClientResponse answer =
          client.post(chat ? "/v1/chat/completions" : "/v1/completions", body.dump());
      REQUIRE(answer.status == 200);
      std::size_t found = 0;
      if (!body.contains("stream")) return answer.json()["usage"].contains("kv_cache");
      for (const std::string& event : events_of(answer.body))
        found += event.find("\"kv_cache\"") == std::string::npos ? 0 : 1;
      CHECK(found <= 1);
      return found == 1;
    };
    const json stream = {{"stream", true}};
    const json with_usage = {{"stream", true}, {"stream_options", {{"include_usage", true}}}};
    const json running = {{"stream", true}, {"stream_options", {{"continuous_usage_stats", true}}}};
    const json both = {
        {"stream", true},
        {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}};
    for (const json& plain :
         {json{{"prompt", "x"}, {"max_tokens", 3}},
          json{{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"max_tokens", 3}}}) {
      INFO(plain.dump() << " default " << by_default);
      CHECK(has(plain, json::object()) == by_default);
      for (const bool wanted : {true, false}) {
        json body = plain;
        body["kv_receipt"] = wanted;
        CHECK(has(body, json::object()) == wanted);
        CHECK(has(body, with_usage) == wanted);
        CHECK(has(body, both) == wanted);
        CHECK_FALSE(has(body, stream));
        CHECK_FALSE(has(body, running));
      }
    }
  }
}

TEST_CASE("KvReceipt: whole and streamed answers say the same", "[server]") {
  TestServer server;
  Client client(server);
  json body = {{"prompt", std::string(20, 'x')},
               {"max_tokens", 5},
               {"n", 2},
               {"ignore_eos", true},
               {"kv_receipt", true},
               {"cache_salt", "a"}};
  const json whole = client.post("/v1/completions", body.dump()).json()["usage"]["kv_cache"];
  body.update(
      {{"stream", true}, {"stream_options", {{"include_usage", true}}}, {"cache_salt", "b"}});
  const std::vector<std::string> events =
      events_of(client.post("/v1/completions", body.dump()).body);
  REQUIRE(events.size() > 2);
  CHECK(json::parse(events[events.size() - 2])["usage"]["kv_cache"] == whole);
  CHECK(whole["computed_tokens"] == 24 + 5);
  CHECK(whole.size() == kv_receipt_rows().size());
}
