// What the service refuses before it spends time or memory: calls that nobody waits for, full
// queues, and texts and token lists past their bounds.
#include "server/generate_service.h"

#include "tests/server/test_server.h"
#include "tests/support/catch.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;

namespace {

CompletionFields completion(std::string prompt) {
  CompletionFields fields;
  fields.prompts = {std::move(prompt)};
  fields.max_tokens = 4;
  return fields;
}

ChatFields chat(std::string content) {
  ChatFields fields;
  fields.messages = {
      {.role = "user", .content = std::move(content), .name = {}, .tool_call_id = {}}};
  fields.max_tokens = 4;
  return fields;
}

/// The code of both endpoints, which must agree.
ErrorCode code_of_both(TestEngine& test, const CompletionFields& completion_fields,
                       const ChatFields& chat_fields, const CallContext& context) {
  const auto first = test.service->complete(
      completion_fields, [] {}, context);
  const auto second = test.service->chat(
      chat_fields, [] {}, context);
  REQUIRE(!first.has_value());
  REQUIRE(!second.has_value());
  CHECK(first.error().code == second.error().code);
  return first.error().code;
}

/// Tokens that a prompt, the same for all, finds in the cache.
std::uint64_t cached_tokens(TestEngine& test, std::uint64_t tenant,
                            std::optional<std::string> salt = {}) {
  CompletionFields fields = completion(std::string(100, 'x'));
  fields.cache_salt = std::move(salt);
  CallContext context;
  context.tenant = tenant;
  const auto generation = test.service->complete(
      fields, [] {}, context);
  REQUIRE(generation.has_value());
  REQUIRE(eventually([&] {
    (*generation)->poll();
    return (*generation)->done() && test.is_idle();
  }));
  return (*generation)->usage().cached_tokens;
}

}  // namespace

TEST_CASE("GenerateService: only requests of one tenant and one salt share cached blocks",
          "[server]") {
  TestEngine test(512);
  std::string same_bytes(8, '\0');  // as the tenant before it
  same_bytes[0] = 1;
  const std::vector<std::pair<std::uint64_t, std::optional<std::string>>> scopes = {
      {0, {}},  {1, {}},  {2, {}},         {0, "a"},       {1, "a"},
      {2, "a"}, {1, "b"}, {0, same_bytes}, {1, same_bytes}};
  for (const auto& [tenant, salt] : scopes) {
    CAPTURE(tenant, salt.value_or("none"));
    CHECK(cached_tokens(test, tenant, salt) == 0);
    CHECK(cached_tokens(test, tenant, salt) > 0);
  }
  for (const auto& [tenant, salt] : scopes) CHECK(cached_tokens(test, tenant, salt) > 0);
}

TEST_CASE("GenerateService: a call whose client has gone is not submitted", "[server]") {
  TestEngine test;
  const std::atomic<bool> gone{true};
  CallContext context;
  context.gone = &gone;
  CHECK(code_of_both(test, completion("x"), chat("x"), context) == ErrorCode::kCancelled);
  CHECK(test.engine->status().prompt_tokens_total == 0);
  CHECK(test.executor.requests().empty());
}

TEST_CASE("GenerateService: timeout_ms runs from the arrival", "[server]") {
  TestEngine test;
  CompletionFields completion_fields = completion("x");
  ChatFields chat_fields = chat("x");
  completion_fields.timeout_ms = chat_fields.timeout_ms = 60'000;
  CallContext context;
  context.arrival = test.clock.now() - std::chrono::seconds(60);
  CHECK(code_of_both(test, completion_fields, chat_fields, context) ==
        ErrorCode::kDeadlineExceeded);
  CHECK(test.executor.requests().empty());
  context.arrival = test.clock.now();
  CHECK(test.service
            ->complete(
                completion_fields, [] {}, context)
            .has_value());
}

TEST_CASE("GenerateService: a full queue is noticed before the prompt is tokenised", "[server]") {
  TestEngine test(64, /*max_waiting=*/1);  // beside eight that may run
  test.executor.close_gate();
  CompletionFields all = completion("x");
  all.n = 9;
  const auto running = test.service->complete(all, [] {});
  REQUIRE(running.has_value());
  // Both prompts are far too long, which only their bytes or tokens tell.
  const std::string endless(100'000, 'x');
  CHECK(code_of_both(test, completion(endless), chat(endless), {}) == ErrorCode::kQueueFull);
}

TEST_CASE("GenerateService: detokenize is bounded by tokens and by bytes", "[server]") {
  TestEngine test;
  DetokenizeFields fields;
  fields.tokens.assign(100'000, 'a');
  CHECK(test.service->detokenize(fields)->size() == 100'000);
  fields.tokens.push_back('a');
  CHECK(test.service->detokenize(fields).error().param == "tokens");
  fields.tokens.assign(100'000, kImStart);  // spelled out: 12 bytes each
  const auto refused = test.service->detokenize(fields);
  REQUIRE(!refused.has_value());
  CHECK(refused.error().code == ErrorCode::kInvalidValue);
}

TEST_CASE("GenerateService: tokenize counts all that is rendered", "[server]") {
  TestEngine test;
  const std::string large((1U << 20U) + 1, 'x');
  const auto refused = [&test](const TokenizeFields& fields) {
    const auto tokens = test.service->tokenize(fields);
    REQUIRE(!tokens.has_value());
    CHECK(tokens.error().message.find("bytes") != std::string::npos);
    CHECK(tokens.error().code == ErrorCode::kInvalidValue);
    return tokens.error().param;
  };
  TokenizeFields fields;
  fields.prompt = large;
  CHECK(refused(fields) == "prompt");
  fields.prompt.reset();
  text::ChatMessage message{.role = "user", .content = "x", .name = {}, .tool_call_id = {}};
  message.name = large;
  fields.messages = {message};
  CHECK(refused(fields) == "messages");
  message.name.reset();
  message.tool_call_id = large;
  fields.messages = {message};
  CHECK(refused(fields) == "messages");
  // Each message is small and so is their sum, but the template adds its marks to each.
  message.tool_call_id.reset();
  message.content = std::string(506, 'x');
  fields.messages = std::vector<text::ChatMessage>(2048, message);
  CHECK(refused(fields) == "messages");
}
