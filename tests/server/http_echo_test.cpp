// Prompts in answers: echo, and the logprobs of a prompt's tokens, whole and streamed, for several
// prompts and choices.
#include "server/prompt_answer.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

#include <map>
#include <utility>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;
using nlohmann::json;

namespace {

json complete(Client& client, const json& body) {
  const ClientResponse response = client.post("/v1/completions", body.dump());
  INFO(response.body);
  REQUIRE(response.status == 200);
  return response.json();
}

/// The chunks of a streamed completion joined to what the whole answer's choices are.
json joined_choices(const std::string& body) {
  std::map<int, json> choices;
  const std::vector<std::string> events = events_of(body);
  REQUIRE(!events.empty());
  REQUIRE(events.back() == "[DONE]");
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const json chunk = json::parse(events[i]);
    for (const json& piece : chunk["choices"]) {
      const auto [place, is_first] = choices.try_emplace(piece["index"], piece);
      if (is_first) continue;
      json& choice = place->second;
      CHECK(choice["finish_reason"].is_null());
      CHECK(!piece.contains("prompt_logprobs"));
      CHECK(!piece.contains("prompt_token_ids"));
      choice["text"] = choice["text"].get<std::string>() + piece["text"].get<std::string>();
      choice["finish_reason"] = piece["finish_reason"];
      if (piece.contains("stop_reason")) choice["stop_reason"] = piece["stop_reason"];
      for (const json& id : piece["token_ids"]) choice["token_ids"].push_back(id);
      if (piece["logprobs"].is_null()) continue;
      for (const auto& [name, list] : piece["logprobs"].items()) {
        for (const json& entry : list) choice["logprobs"][name].push_back(entry);
      }
    }
  }
  json list = json::array();
  for (auto& [index, choice] : choices) list.push_back(std::move(choice));
  return list;
}

/// The whole answer, which the joined stream of the same request must equal.
json complete_both_ways(Client& client, json body) {
  body["return_token_ids"] = true;
  const json whole = complete(client, body);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const ClientResponse streamed = client.post("/v1/completions", body.dump());
  REQUIRE(streamed.status == 200);
  CHECK(joined_choices(streamed.body) == whole["choices"]);
  return whole;
}

}  // namespace

TEST_CASE("Echo: the prompt comes first in the text and in the lists of logprobs",
          "[server][echo]") {
  TestServer server;
  Client client(server);
  // "é" is two byte tokens, "hello" one token.
  const json whole = complete_both_ways(
      client, {{"prompt", "x\u00e9hello"}, {"echo", true}, {"max_tokens", 3}, {"logprobs", 1}});
  const json& choice = whole["choices"][0];
  CHECK(choice["text"] == "x\u00e9helloabc");
  const json& logprobs = choice["logprobs"];
  CHECK(logprobs["tokens"] == json({"x", "bytes:\\xc3", "bytes:\\xa9", "hello", "a", "b", "c"}));
  CHECK(logprobs["token_logprobs"] == json({nullptr, -0.125, -0.25, -0.375, -0.25, -0.5, -0.75}));
  CHECK(logprobs["text_offset"] == json({0, 1, 1, 2, 7, 8, 9}));
  CHECK(logprobs["top_logprobs"].size() == 7);
  CHECK(logprobs["top_logprobs"][0].is_null());
  // One best token, and the prompt's own beside it.
  CHECK(logprobs["top_logprobs"][3] == json({{"<|im_start|>", -0.375}, {"hello", -0.375}}));
  CHECK(logprobs["top_logprobs"][4] == json({{"a", -0.25}}));
  CHECK(choice["token_ids"] == json({'a', 'b', 'c'}));
  CHECK(whole["usage"]["prompt_tokens"] == 4);
  CHECK(whole["usage"]["completion_tokens"] == 3);
}

TEST_CASE("Echo: without logprobs only the text is put before the answer", "[server][echo]") {
  TestServer server;
  Client client(server);
  const json whole =
      complete_both_ways(client, {{"prompt", "hello"}, {"echo", true}, {"max_tokens", 3}});
  CHECK(whole["choices"][0]["text"] == "helloabc");
  CHECK(whole["choices"][0]["logprobs"].is_null());
  CHECK(!server.executor.requests().at(0).prompt_logprobs.has_value());
}

TEST_CASE("Echo: every choice of every prompt begins with its own, computed once a prompt",
          "[server][echo]") {
  TestServer server;
  Client client(server);
  const json whole = complete_both_ways(client, {{"prompt", {"one", "hello two"}},
                                                 {"echo", true},
                                                 {"n", 2},
                                                 {"max_tokens", 2},
                                                 {"logprobs", 0}});
  REQUIRE(whole["choices"].size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    const json& choice = whole["choices"][i];
    CHECK(choice["index"] == i);
    CHECK(choice["text"] == (i < 2 ? "oneab" : "hello twoab"));
    CHECK(choice["logprobs"]["tokens"].size() == (i < 2 ? 5 : 7));
    CHECK(choice["logprobs"]["token_logprobs"][1] == -0.125);
  }
  CHECK(whole["usage"]["prompt_tokens"] == 3 + 5);
  std::size_t num_scored = 0;
  for (const Request& request : server.executor.requests()) {
    num_scored += request.prompt_logprobs.has_value() ? 1 : 0;
  }
  CHECK(num_scored == 2 * 2);  // whole and streamed
}

TEST_CASE("Echo: token ids are decoded, and what is no text in them stays within the prompt",
          "[server][echo]") {
  TestServer server;
  Client client(server);
  // The prompt ends inside of a character whose last byte the model generates.
  server.executor.set_script(byte_tokens("\xA9z"));
  const json whole = complete_both_ways(
      client,
      {{"prompt", {'a', kImStart, 0xC3}}, {"echo", true}, {"max_tokens", 2}, {"logprobs", 0}});
  const json& choice = whole["choices"][0];
  CHECK(choice["text"] == "a\uFFFD\uFFFDz");
  CHECK(choice["logprobs"]["text_offset"] == json({0, 1, 1, 2, 3}));
  CHECK(choice["logprobs"]["tokens"][1] == "<|im_start|>");
  // Control tokens are a part of the text where they are wanted.
  const json spelled = complete_both_ways(client, {{"prompt", {'a', kImStart, 'b'}},
                                                   {"echo", true},
                                                   {"max_tokens", 1},
                                                   {"skip_special_tokens", false},
                                                   {"logprobs", 0}});
  CHECK(spelled["choices"][0]["text"].get<std::string>().starts_with("a<|im_start|>b"));
  CHECK(spelled["choices"][0]["logprobs"]["text_offset"] == json({0, 1, 13, 14}));
}

TEST_CASE("Echo: with max_tokens 0 the prompt is the answer", "[server][echo]") {
  TestServer server;
  Client client(server);
  const json scored = complete_both_ways(
      client,
      {{"prompt", "hello you"}, {"echo", true}, {"n", 2}, {"max_tokens", 0}, {"logprobs", 2}});
  for (const json& choice : scored["choices"]) {
    CHECK(choice["text"] == "hello you");
    CHECK(choice["finish_reason"] == "length");
    CHECK(choice["logprobs"]["token_logprobs"] == json({nullptr, -0.125, -0.25, -0.375, -0.5}));
    CHECK(choice["token_ids"].empty());
  }
  CHECK(scored["usage"]["completion_tokens"] == 0);
  const std::size_t before = server.executor.requests().size();
  CHECK(before == 2);  // the first choice of each request
  const json bare = complete_both_ways(
      client, {{"prompt", "hello"}, {"echo", true}, {"n", 3}, {"max_tokens", 0}});
  CHECK(bare["choices"].size() == 3);
  CHECK(bare["choices"][2]["text"] == "hello");
  CHECK(bare["choices"][2]["finish_reason"] == "length");
  CHECK(server.executor.requests().size() == before);  // nothing was computed
  // A prompt may then fill the context.
  const json full = complete(client, {{"prompt", std::vector<int>(kTinyContext, 'x')},
                                      {"echo", true},
                                      {"max_tokens", 0},
                                      {"logprobs", 0}});
  CHECK(full["choices"][0]["logprobs"]["tokens"].size() == kTinyContext);
  CHECK(client
            .post("/v1/completions", json{{"prompt", std::vector<int>(kTinyContext + 1, 'x')},
                                          {"echo", true},
                                          {"max_tokens", 0}}
                                         .dump())
            .error_code() == "context_length_exceeded");
}

TEST_CASE("Echo: what lm-eval asks has one generated token and lists of one length",
          "[server][echo]") {
  TestServer server;
  Client client(server);
  const json whole = complete(client, {{"prompt", {{'a', 'b', 'c', 'd'}, {'e', 'f'}}},
                                       {"echo", true},
                                       {"max_tokens", 1},
                                       {"temperature", 0},
                                       {"logprobs", 1}});
  for (std::size_t i = 0; i < 2; ++i) {
    const json& logprobs = whole["choices"][i]["logprobs"];
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      CHECK(logprobs[list].size() == (i == 0 ? 5 : 3));
    }
  }
  CHECK(whole["usage"]["completion_tokens"] == 2);
}

TEST_CASE("Echo: a stop string is looked for in what is generated alone", "[server][echo]") {
  TestServer server;
  Client client(server);
  const json whole = complete_both_ways(
      client,
      {{"prompt", "abcd"}, {"echo", true}, {"stop", "cd"}, {"max_tokens", 8}, {"logprobs", 0}});
  CHECK(whole["choices"][0]["text"] == "abcdab");
  CHECK(whole["choices"][0]["stop_reason"] == "cd");
}

TEST_CASE("Prompt logprobs: each choice of a completion lists its prompt's", "[server][echo]") {
  TestServer server;
  Client client(server);
  const json whole = complete_both_ways(
      client, {{"prompt", {"ab", "c"}}, {"n", 2}, {"max_tokens", 1}, {"prompt_logprobs", 2}});
  for (std::size_t i = 0; i < 4; ++i) {
    const json& choice = whole["choices"][i];
    CHECK(choice["text"] == "a");
    CHECK(choice["logprobs"].is_null());
    if (i >= 2) {
      CHECK(choice["prompt_logprobs"] == json::array({nullptr}));
      continue;
    }
    CHECK(choice["prompt_logprobs"] == json::parse(R"([null,
        {"98":{"logprob":-0.125,"rank":1,"decoded_token":"b"},
         "99":{"logprob":-0.125,"rank":1,"decoded_token":"c"},
         "100":{"logprob":-1.125,"rank":2,"decoded_token":"d"}}])"));
  }
  CHECK(!complete(client, {{"prompt", "ab"}, {"max_tokens", 1}})["choices"][0].contains(
      "prompt_logprobs"));
}

TEST_CASE("Prompt logprobs: they and echo are cut to what each asks for", "[server][echo]") {
  TestServer server;
  Client client(server);
  for (const auto& [listed, echoed] : {std::pair{0, 3}, std::pair{3, 0}}) {
    const json whole = complete_both_ways(client, {{"prompt", "ab"},
                                                   {"echo", true},
                                                   {"max_tokens", 0},
                                                   {"logprobs", echoed},
                                                   {"prompt_logprobs", listed}});
    const json& choice = whole["choices"][0];
    CHECK(choice["prompt_logprobs"][1].size() == static_cast<std::size_t>(1 + listed));
    CHECK(choice["logprobs"]["top_logprobs"][1].size() == static_cast<std::size_t>(1 + echoed));
  }
}

TEST_CASE("Prompt logprobs: a chat lists them once, beside its choices", "[server][echo]") {
  TestServer server;
  Client client(server);
  const std::string request =
      R"({"messages":[{"role":"user","content":"x"}],"n":2,"max_tokens":3,"prompt_logprobs":1)";
  const ClientResponse response = client.post("/v1/chat/completions", request + "}");
  REQUIRE(response.status == 200);
  const json whole = response.json();
  const json& list = whole["prompt_logprobs"];
  REQUIRE(list.size() == whole["usage"]["prompt_tokens"]);
  CHECK(list[0].is_null());
  CHECK(list[1].size() == 2);
  CHECK(!whole["choices"][0].contains("prompt_logprobs"));
  const ClientResponse streamed =
      client.post("/v1/chat/completions", request + R"(,"stream":true})");
  const std::vector<std::string> events = events_of(streamed.body);
  CHECK(json::parse(events[0])["prompt_logprobs"] == list);
  for (std::size_t i = 1; i + 1 < events.size(); ++i) {
    CHECK(!json::parse(events[i]).contains("prompt_logprobs"));
  }
}

TEST_CASE("Echo: the text of all choices together is bounded", "[server][echo]") {
  PromptRules rules;
  CHECK(check_echo(rules, 128, 0));
  rules.echo = {{.text = "four"}, {.text = "six..."}};
  CHECK(check_echo(rules, 3, 30));
  const auto refused = check_echo(rules, 3, 29);
  REQUIRE(!refused);
  CHECK(refused.error().param == "echo");
  CHECK(refused.error().code == ErrorCode::kInvalidValue);
}

TEST_CASE("Echo: events too large for the network's thread are what the whole answer is",
          "[server][echo]") {
  TestServer server({}, 64, 128);
  Client client(server);
  json body = {{"prompt", std::vector<std::vector<int>>(2, std::vector<int>(200, 'x'))},
               {"n", 8},
               {"max_tokens", 3},
               {"echo", true},
               {"logprobs", 5},
               {"prompt_logprobs", 3},
               {"seed", 5}};
  const json whole = complete_both_ways(client, body);
  CHECK(whole.dump().size() > 256U << 10U);
}

TEST_CASE("Prompt logprobs: more than an answer may hold are refused beforehand",
          "[server][echo]") {
  const auto param_of = [](const PromptRules& rules, std::size_t tokens, std::uint32_t choices,
                           bool listed_once, std::uint64_t generated = 0) {
    const std::vector<std::vector<TokenId>> prompts(2, std::vector<TokenId>(tokens, 'x'));
    const auto checked = check_prompt_logprobs(rules, prompts, choices, listed_once, generated);
    return checked ? std::string() : checked.error().param;
  };
  PromptRules listed;
  listed.listed_top = 15;
  CHECK(param_of(listed, 1U << 15U, 1, false).empty());  // 2 x 2^15 x 16 are 2^20
  CHECK(param_of(listed, (1U << 15U) + 1, 1, false) == "prompt_logprobs");
  CHECK(param_of(listed, 1U << 14U, 2, false).empty());
  CHECK(param_of(listed, 1U << 15U, 2, false) == "prompt_logprobs");
  CHECK(param_of(listed, 1U << 15U, 2, true).empty());
  PromptRules echoed;
  echoed.echo_top = 15;
  CHECK(param_of(echoed, 1U << 15U, 1, true).empty());
  CHECK(param_of(echoed, 1U << 15U, 2, true) == "logprobs");
  echoed.listed_top = 15;
  CHECK(param_of(echoed, 1U << 14U, 1, false).empty());
  CHECK(param_of(echoed, 1U << 15U, 1, false) == "prompt_logprobs");
  CHECK(param_of({}, 1U << 20U, 128, false).empty());
  // Those of generated tokens are in the same answer.
  CHECK(param_of(listed, (1U << 15U) - 1, 1, false, 32).empty());
  CHECK(param_of(listed, (1U << 15U) - 1, 1, false, 33) == "prompt_logprobs");
  CHECK(param_of({}, 1, 1, false, 1U << 21U).empty());  // the validator's alone

  TestServer server({}, 64, 128);
  Client client(server);
  const json body = {{"prompt", std::vector<std::vector<int>>(2, std::vector<int>(250, 'x'))},
                     {"n", 64},
                     {"max_tokens", 1},
                     {"echo", true},
                     {"logprobs", 20},
                     {"prompt_logprobs", 20}};
  const ClientResponse refused = client.post("/v1/completions", body.dump());
  CHECK(refused.status == 400);
  CHECK(refused.error_code() == "invalid_value");
  CHECK(refused.error_param() == "prompt_logprobs");
  CHECK(server.executor.requests().empty());
}

TEST_CASE("HttpServer: a request that bans every token is told so", "[server]") {
  TestServer server;
  server.executor.ban_all();
  Client client(server);
  const ClientResponse banned = client.post(
      "/v1/completions", R"({"prompt":"x","min_tokens":2,"max_tokens":4,"stop_token_ids":[1]})");
  CHECK(banned.status == 400);
  CHECK(banned.error_code() == "invalid_value");
  CHECK(banned.error_param() == "min_tokens");
  CHECK(client.post("/v1/completions", R"({"prompt":"x","ignore_eos":true})").status == 500);
}
