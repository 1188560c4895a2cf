// What can never fit is refused with its numbers, which are the planner's own: with layers that
// have a window, a sequence needs less than its tokens say.
#include "server/token_room.h"

#include "tests/server/test_server.h"
#include "tests/support/catch.h"

#include <string>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;

namespace {

/// One layer that sees everything and two with a window of 32; steps of 16 tokens. A block is one
/// layer's 16 tokens: 2,048 bytes.
kvcache::KvGeometry windowed_geometry() {
  kvcache::KvGeometry geometry = tiny_geometry();
  geometry.groups = {{.num_layers = 1, .num_kv_heads = 1, .head_dim = 16, .window_tokens = 0},
                     {.num_layers = 2, .num_kv_heads = 1, .head_dim = 16, .window_tokens = 32}};
  geometry.largest_chunk = 16;
  return geometry;
}

// The windowed layers hold 32 + 16 - 1 tokens at most, which is three blocks and one more as they
// move: eight of both. So the other layer has six of fourteen, for 96 tokens.
constexpr std::uint32_t kBlocks = 14;

ModelInfo windowed_model() {
  ModelInfo model;
  model.context_tokens = 1000;
  model.geometry = windowed_geometry();
  model.num_blocks = kBlocks;
  return model;
}

}  // namespace

TEST_CASE("resolve_max_tokens: a refusal says bytes needed, bytes there and the longest prompt",
          "[server]") {
  // 100 + 10 - 1 tokens are seven blocks of the first layer, and eight of the others.
  const auto refused = resolve_max_tokens(windowed_model(), 100, {.max_tokens = 10}, "prompt");
  REQUIRE(!refused.has_value());
  CHECK(refused.error().code == ErrorCode::kContextLengthExceeded);
  CHECK(refused.error().param == "prompt");
  CHECK(refused.error().message ==
        "the prompt of 100 tokens with max_tokens 10 needs 30720 bytes of KV cache, but the whole "
        "budget is 28672 bytes; the longest prompt that would fit has 87 tokens");
  CHECK(resolve_max_tokens(windowed_model(), 87, {.max_tokens = 10}, "prompt") == 10U);
  CHECK_FALSE(resolve_max_tokens(windowed_model(), 88, {.max_tokens = 10}, "prompt").has_value());
}

TEST_CASE("resolve_max_tokens: an absent max_tokens is what the window leaves", "[server]") {
  const auto left = [](std::uint64_t prompt, std::uint64_t when_absent) {
    return resolve_max_tokens(windowed_model(), prompt, {.when_absent = when_absent}, "prompt");
  };
  CHECK(left(50, 1000) == 47U);  // 50 + 47 - 1 are 96
  CHECK(left(50, 16) == 16U);
  CHECK(left(96, 1000) == 1U);
  CHECK_FALSE(left(97, 1000).has_value());
  ModelInfo all_windowed = windowed_model();  // then any length fits
  all_windowed.geometry.groups.erase(all_windowed.geometry.groups.begin());
  CHECK(resolve_max_tokens(all_windowed, 50, {.when_absent = 1000}, "prompt") == 950U);
}

TEST_CASE("resolve_max_tokens: what the refusal says would fit does run, and alone", "[server]") {
  TestEngineOptions options;
  options.num_blocks = kBlocks;
  options.geometry = windowed_geometry();
  TestServer server(options);
  Client client(server);
  const auto ask = [&client](std::size_t prompt) {
    nlohmann::json body = {{"prompt", std::string(prompt, 'x')}, {"max_tokens", 10}};
    body.update({{"ignore_eos", true}, {"kv_receipt", true}});
    return client.post("/v1/completions", body.dump());
  };
  const ClientResponse refused = ask(88);
  CHECK(refused.status == 400);
  CHECK(refused.error_code() == "context_length_exceeded");
  CHECK(refused.json()["error"]["message"].get<std::string>().ends_with(
      "the longest prompt that would fit has 87 tokens"));
  CHECK(server.engine->status().prompt_tokens_total == 0);  // before any work
  const ClientResponse longest = ask(87);
  REQUIRE(longest.status == 200);
  const nlohmann::json receipt = longest.json()["usage"]["kv_cache"];
  CHECK(receipt["computed_tokens"] == 96);
  CHECK(receipt["peak_bytes"] <= kBlocks * 2048);
  CHECK(receipt["preemptions"] == 0);
}
