// Requests that broke other servers, as text from the wire up to the verdict: numbers, depth,
// duplicate keys, bytes that are no text, combinations of fields. What only a door can see is in
// http_bad_input_test and tests/e2e.
#include "server/http/json_reader.h"
#include "tests/server/both_doors.h"
#include "tests/support/catch.h"

#include <array>
#include <random>
#include <vector>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;
using nlohmann::json;

namespace {

constexpr ErrorCode kValue = ErrorCode::kInvalidValue;
constexpr ErrorCode kType = ErrorCode::kInvalidType;
constexpr ErrorCode kMissing = ErrorCode::kMissingParameter;
constexpr ErrorCode kUnsupported = ErrorCode::kUnsupportedParameter;

/// What REST says of these bytes.
DoorVerdict text_verdict(FieldUsers user, const std::string& text,
                         const RequestLimits& limits = {}) {
  const auto body = read_json(text, limits);
  if (!body) return {body.error().code, body.error().param, body.error().message};
  return rest_verdict(user, *body, limits);
}

void check(FieldUsers user, const std::string& text, std::optional<ErrorCode> code,
           const std::string& param, const RequestLimits& limits = {}) {
  INFO(text.substr(0, 300));
  CHECK(text_verdict(user, text, limits) == DoorVerdict{code, param, ""});
  const auto body = read_json(text, limits);
  if (!body) return;
  if (const auto verdict = grpc_verdict(user, *body, limits))
    CHECK(*verdict == DoorVerdict{code, param, ""});
}

/// For completions and chat alike; `members` go beside a good prompt.
void check_both(const std::string& members, std::optional<ErrorCode> code, const std::string& param,
                const RequestLimits& limits = {}) {
  check(kOfCompletions, R"({"prompt":"x",)" + members + "}", code, param, limits);
  check(kOfChat, R"({"messages":[{"role":"user","content":"x"}],)" + members + "}", code, param,
        limits);
}

std::string messages(const std::string& list) { return R"({"messages":)" + list + "}"; }

}  // namespace

TEST_CASE("bad request: nesting is refused by the parser, wherever it is", "[server]") {
  const std::string deep(100'000, '[');
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
  for (const std::string& text :
       {R"({"messages":)" + deep, R"({"tools":[{"function":{"parameters":)" + objects,
        R"({"metadata":)" + objects, R"({"nobody_knows":)" + deep, deep}) {
    check(kOfChat, text, ErrorCode::kJsonTooDeep, "");
  }
  RequestLimits shallow;
  shallow.json_depth = 3;
  check(kOfCompletions, R"({"prompt":"x","metadata":[[1]]})", std::nullopt, "", shallow);
  check(kOfCompletions, R"({"prompt":"x","metadata":[[[1]]]})", ErrorCode::kJsonTooDeep, "",
        shallow);
  RequestLimits few;
  few.json_values = 5;
  check(kOfCompletions, R"({"prompt":"x","metadata":[1,2]})", std::nullopt, "", few);
  check(kOfCompletions, R"({"prompt":"x","metadata":[1,2,3]})", ErrorCode::kInvalidJson, "", few);
}

TEST_CASE("bad request: a key twice is named, at every level", "[server]") {
  check(kOfCompletions, R"({"max_tokens":1,"prompt":"x","max_tokens":100000})",
        ErrorCode::kInvalidJson, "max_tokens");
  check(kOfChat, messages(R"([{"role":"user","content":"a","role":"system"}])"),
        ErrorCode::kInvalidJson, "role");
  check(kOfChat, R"({"response_format":{"json_schema":{"type":"a","type":"b"}}})",
        ErrorCode::kInvalidJson, "type");
  check(kOfCompletions, R"({"prompt":"x","logit_bias":{"1":1,"\u0031":2}})",
        ErrorCode::kInvalidJson, "1");
}

TEST_CASE("bad request: bytes that are no UTF-8, and half surrogates", "[server]") {
  for (const std::string& bytes :
       {std::string("\xFF\xFE"), std::string("\xC0\xAF"), std::string("\xED\xA0\x80"),
        std::string("\\ud800"), std::string("\\udc00\\ud800"), std::string("\xE4\xB8")}) {
    check(kOfCompletions, R"({"prompt":")" + bytes + "\"}", ErrorCode::kInvalidJson, "");
    check(kOfChat, messages(R"([{"role":"user","content":")" + bytes + "\"}]"),
          ErrorCode::kInvalidJson, "");
    check(kOfCompletions, "{\"" + bytes + R"(":1,"prompt":"x"})", ErrorCode::kInvalidJson, "");
  }
  check(kOfCompletions, R"({"prompt":"\ud83e\uddea"})", std::nullopt, "");
  check(kOfCompletions, "{\"prompt\":\"x\"", ErrorCode::kInvalidJson, "");
  for (const char* text : {"", "[1]", "{}{}", "{} x", "\x89PNG", "nul", "\"x\""})
    check(kOfCompletions, text, ErrorCode::kInvalidJson, "");
}

TEST_CASE("bad request: numbers that other parsers change in silence", "[server]") {
  for (const char* value : {"true", "\"5\"", "2.9", "9223372036854775808", "-9223372036854775809",
                            "1e30", "[5]", "{}"}) {
    check_both(R"("max_tokens":)" + std::string(value), kType, "max_tokens");
  }
  check_both(R"("max_tokens":-1)", kValue, "max_tokens");
  check_both(R"("max_tokens":0)", kValue, "max_tokens");
  check_both(R"("max_tokens":null)", std::nullopt, "");
  check_both(R"("max_tokens":16.0)", std::nullopt, "");
  for (const char* value : {"1000000000", "0", "-1", "129"})
    check_both(R"("n":)" + std::string(value), kValue, "n");
  for (const char* value : {"-0.1", "2.1", "1e300", "-1e-300"})
    check_both(R"("temperature":)" + std::string(value), kValue, "temperature");
  check_both(R"("temperature":"NaN")", kType, "temperature");
  for (const char* value : {"1e400", "NaN", "-Infinity"})
    check_both(R"("temperature":)" + std::string(value), ErrorCode::kInvalidJson, "");
}

TEST_CASE("bad request: n times the prompts", "[server]") {
  const auto with_prompts = [](int count, int n) {
    json body{{"prompt", json::array()}, {"n", n}};
    for (int i = 0; i < count; ++i) body["prompt"].push_back("x");
    return body.dump();
  };
  check(kOfCompletions, with_prompts(2, 64), std::nullopt, "");
  check(kOfCompletions, with_prompts(2, 65), kValue, "n");
  check(kOfCompletions, with_prompts(2, 128), kValue, "n");
  check(kOfCompletions, with_prompts(128, 1), std::nullopt, "");
  check(kOfCompletions, with_prompts(128, 2), kValue, "n");
  check(kOfCompletions, with_prompts(129, 1), kValue, "prompt");
}

TEST_CASE("bad request: logit_bias", "[server]") {
  for (const char* map : {R"({"5000":1})", R"({"-1":1})", R"({"abc":1})", R"({"1.5":1})",
                          R"({"1":101})", R"({"1":-100.5})", R"({"99999999999999999999":1})",
                          R"({"":1})", R"({"01":1})", R"({"+1":1})", R"({" 1":1})"}) {
    check_both(R"("logit_bias":)" + std::string(map), kValue, "logit_bias");
  }
  for (const char* other : {R"({"1":true})", R"({"1":"2"})", R"({"1":null})", "[1]", "7"})
    check_both(R"("logit_bias":)" + std::string(other), kType, "logit_bias");
  check_both(R"("logit_bias":{"0":-100,"4999":100.0})", std::nullopt, "");
  json many = json::object();
  for (int i = 0; i < 100'000; ++i) many[std::to_string(i)] = 1;
  check_both(R"("logit_bias":)" + many.dump(), kValue, "logit_bias");
}

TEST_CASE("bad request: prompts", "[server]") {
  const auto prompt = [](const std::string& value) {
    return std::string(R"({"prompt":)").append(value).append("}");
  };
  for (const char* empty : {"null", "[]"}) check(kOfCompletions, prompt(empty), kMissing, "prompt");
  for (const char* empty : {R"("")", "[[]]", R"([""])"})
    check(kOfCompletions, prompt(empty), kValue, "prompt");
  check(kOfCompletions, prompt(R"(["a",""])"), kValue, "prompt[1]");
  check(kOfCompletions, prompt("[[1],[]]"), kValue, "prompt[1]");
  for (const char* id : {"5000", "-1", "2147483648"})
    check(kOfCompletions, prompt(std::string("[").append(id).append("]")), kValue, "prompt[0]");
  check(kOfCompletions, prompt("[9223372036854775808]"), kType, "prompt[0]");
  check(kOfCompletions, prompt(R"([1,"a"])"), kType, "prompt[1]");
  check(kOfCompletions, prompt(R"(["a",1])"), kType, "prompt[1]");
  check(kOfCompletions, prompt("[[[1]]]"), kType, "prompt[0][0]");
  for (const char* other : {"true", "7", "{}", "[null]", "[{}]"})
    CHECK(text_verdict(kOfCompletions, prompt(other)).code == kType);
}

TEST_CASE("bad request: messages", "[server]") {
  for (const char* empty : {"[]", "null"}) check(kOfChat, messages(empty), kMissing, "messages");
  check(kOfChat, messages("[{}]"), kMissing, "messages[0].role");
  check(kOfChat, messages(R"([{"role":"","content":"x"}])"), kMissing, "messages[0].role");
  check(kOfChat, messages("[123]"), kType, "messages[0]");
  check(kOfChat, messages(R"("x")"), kType, "messages");
  check(kOfChat, messages(R"([{"role":"x","content":"y"}])"), kValue, "messages[0].role");
  check(kOfChat, messages(R"([{"role":"user","content":123}])"), kType, "messages[0].content");
  for (const char* role : {"user", "assistant", "system", "developer"}) {
    check(kOfChat, messages(R"([{"role":")" + std::string(role) + R"(","content":null}])"), kType,
          "messages[0].content");
  }
  check(kOfChat, messages(R"([{"role":"user","content":[]}])"), kValue, "messages[0].content");
  check(kOfChat, messages(R"([{"role":"user","content":[{"type":"image_url"}]}])"),
        ErrorCode::kUnsupportedContent, "messages[0].content[0].type");
  check(kOfChat, messages(R"([{"role":"user","content":[{"text":"x"}]}])"), kMissing,
        "messages[0].content[0].type");
  check(kOfChat, messages(R"([{"role":"user","content":[{"type":"text"}]}])"), kMissing,
        "messages[0].content[0].text");
  check(kOfChat, messages(R"([{"role":"user","content":"x"},{"role":"tool","content":"y"}])"),
        kMissing, "messages[1].tool_call_id");
  check(kOfChat, messages(R"([{"role":"assistant","content":"x","tool_calls":[{}]}])"),
        kUnsupported, "messages[0].tool_calls");
  check(kOfChat, messages(R"([{"role":"function","name":"f","content":"x"}])"), std::nullopt, "");
  check(kOfChat, messages(R"([{"role":"tool","tool_call_id":"1","content":"x"}])"), std::nullopt,
        "");
}

TEST_CASE("bad request: stops and logprobs", "[server]") {
  check_both(R"("stop":"")", kValue, "stop");
  check_both(R"("stop":["a",""])", kValue, "stop");
  check_both(R"("stop":[1])", kType, "stop");
  check_both(R"("stop":{})", kType, "stop");
  check_both(R"("stop":")" + std::string(1 << 20, 'x') + "\"", kValue, "stop");
  check_both(R"("stop":)" + json(std::vector<std::string>(17, "x")).dump(), kValue, "stop");
  check_both(R"("stop":)" + json(std::vector<std::string>(16, std::string(256, 'x'))).dump(),
             std::nullopt, "");
  for (const char* value : {"21", "-1", "1000000", "4294967295"}) {
    check(kOfCompletions, R"({"prompt":"x","logprobs":)" + std::string(value) + "}", kValue,
          "logprobs");
    check_both(R"("prompt_logprobs":)" + std::string(value), kValue, "prompt_logprobs");
    check(kOfChat,
          R"({"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":)" +
              std::string(value) + "}",
          kValue, "top_logprobs");
  }
  check(kOfCompletions, R"({"prompt":"x","logprobs":true})", kType, "logprobs");
  check(kOfChat, R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":5})", kValue,
        "top_logprobs");
}

TEST_CASE("bad request: fields that mean something only beside others", "[server]") {
  check_both(R"("max_tokens":4,"min_tokens":5)", kValue, "min_tokens");
  check_both(R"("max_tokens":5,"min_tokens":5)", std::nullopt, "");
  check(kOfCompletions, R"({"prompt":"x","max_tokens":0,"echo":true})", std::nullopt, "");
  check(kOfCompletions, R"({"prompt":"x","max_tokens":0,"echo":true,"min_tokens":1})", kValue,
        "min_tokens");
  check(kOfCompletions, R"({"prompt":"x","max_tokens":0,"echo":false})", kValue, "max_tokens");
  check(kOfChat,
        R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,)"
        R"("max_completion_tokens":2})",
        kValue, "max_completion_tokens");
  for (const char* options : {"{}", R"({"include_usage":true})"}) {
    const std::string member = R"("stream_options":)" + std::string(options);
    check_both(member, kValue, "stream_options");
    check_both(R"("stream":true,)" + member, std::nullopt, "");
  }
  check_both(R"("stream":true,"stream_options":{"include_usage":1})", kType,
             "stream_options.include_usage");
  check_both(R"("stream_options":null)", std::nullopt, "");
  check(kOfCompletions, R"({"prompt":"x","n":128,"logprobs":15,"max_tokens":512})", std::nullopt,
        "");
  check(kOfCompletions, R"({"prompt":"x","n":128,"logprobs":15,"max_tokens":513})", kValue,
        "max_tokens");
}

TEST_CASE("bad request: a template and its variables are not the client's", "[server]") {
  check_both(R"("chat_template":"{% for i in range(10**9) %}x{% endfor %}")", kUnsupported,
             "chat_template");
  const auto kwargs = [](const std::string& object) {
    return R"({"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":)" + object + "}";
  };
  RequestLimits listed;
  listed.chat_template_kwargs = {"enable_thinking", "tokenize", "messages", "chat_template"};
  for (const char* name : {"chat_template", "tokenize", "messages", "tools", "unlisted", ""}) {
    const std::string object = json{{name, true}}.dump();
    const std::string param = "chat_template_kwargs." + std::string(name);
    check(kOfChat, kwargs(object), kUnsupported, param);
    check(kOfChat, kwargs(object), kUnsupported, param, listed);
  }
  check(kOfChat, kwargs(R"({"enable_thinking":true})"), kUnsupported,
        "chat_template_kwargs.enable_thinking");
  check(kOfChat, kwargs(R"({"enable_thinking":true})"), std::nullopt, "", listed);
  check(kOfChat, kwargs(R"({"enable_thinking":[1,2.5,{"a":null}],"x":1})"), kUnsupported,
        "chat_template_kwargs.x", listed);
  check(kOfChat, kwargs("{}"), std::nullopt, "");
  check(kOfChat, kwargs("[]"), kType, "chat_template_kwargs");
  check(kOfChat, kwargs(R"({"enable_thinking":")" + std::string(70'000, 'x') + "\"}"), kValue,
        "chat_template_kwargs", listed);
  const DoorVerdict control = text_verdict(kOfChat, kwargs(R"({"\u001b[2J":1})"));
  CHECK(control.param == "chat_template_kwargs.?[2J");
}

TEST_CASE("bad request: the first failure answers, types before ranges", "[server]") {
  check_both(R"("temperature":9,"seed":"x")", kType, "seed");
  check_both(R"("stop":"","temperature":9)", kValue, "temperature");
  check_both(R"("temperature":9,"n":0)", kValue, "n");
  check(kOfChat, R"({"temperature":9})", kMissing, "messages");
  check(kOfChat, R"({"temperature":9,"messages":[{"role":"user"}]})", kType, "messages[0].content");
  check_both(R"("temperature":9,"best_of":2)", kUnsupported, "best_of");
}

TEST_CASE("bad request: messages say what was sent and what is allowed", "[server]") {
  const auto message = [](const std::string& members) {
    return text_verdict(kOfCompletions, R"({"prompt":"x",)" + members + "}").message;
  };
  CHECK(message(R"("temperature":2.5)") == "temperature must be a number from 0 to 2, not 2.5");
  CHECK(message(R"("temperature":"hot")") ==
        "temperature must be a number from 0 to 2, not \"hot\"");
  CHECK(message(R"("n":true)") == "n must be an integer from 1 to 128, not true");
  CHECK(message(R"("repetition_penalty":0)") ==
        "repetition_penalty must be a number above 0 and at most 10, not 0");
  CHECK(message(R"("best_of":2)") ==
        "best_of is not supported by this server: it must be absent or 1, not 2");
  const std::string long_value = message(R"("cache_salt":")" + std::string(5000, 'z') + "\"");
  CHECK(long_value.find(std::string(64, 'z') + "...") != std::string::npos);
  CHECK(long_value.find(std::string(65, 'z')) == std::string::npos);
  CHECK(long_value.find("1 to 1024 bytes") != std::string::npos);
}

namespace {

/// Values for a row: of its own type around its borders, and of other types.
json random_value(const FieldRow& row, std::mt19937_64& random) {
  const auto pick = [&random](std::uint64_t count) { return random() % count; };
  static const std::vector<json> others = {json(nullptr),
                                           json(true),
                                           json(-1),
                                           json(0),
                                           json(2.5),
                                           json(1e300),
                                           json(""),
                                           json("x"),
                                           json::array(),
                                           json::array({1}),
                                           json::array({"a", ""}),
                                           json::object(),
                                           json{{"1", 1.0}},
                                           json(std::int64_t{1} << 40U),
                                           json(std::uint64_t{1} << 63U)};
  if (pick(5) == 0) return others[pick(others.size())];
  if (row.integers) {
    const std::int64_t high = value_of(row.integers->high, {});
    const std::array<std::int64_t, 5> values = {row.integers->low, high, 1, 7, 20};
    const std::int64_t value = values[pick(values.size())];
    if (value > -1000 && value < 1'000'000'000'000) return value + static_cast<int>(pick(3)) - 1;
    return value;
  }
  if (row.kind == FieldKind::kNumber) {
    const double width = row.numbers->high - row.numbers->low;
    return row.numbers->low + width * (static_cast<double>(pick(24)) / 20.0 - 0.1);
  }
  switch (row.kind) {
    case FieldKind::kSwitch:
      return pick(2) == 0;
    case FieldKind::kText:
      return std::string(pick(3) == 0 ? 1024 + pick(3) : pick(3), 's');
    case FieldKind::kTexts:
      return json(std::vector<std::string>(15 + pick(3), std::string(254 + pick(4), 's')));
    case FieldKind::kTokenIds:
      return json(std::vector<std::int64_t>(pick(4), static_cast<std::int64_t>(4998 + pick(3))));
    case FieldKind::kBiases:
      return json{{std::to_string(4998 + pick(4)), 99.0 + static_cast<double>(pick(3))}};
    case FieldKind::kPrompts:
      return pick(2) == 0 ? json(std::vector<std::string>(1 + pick(3), pick(9) == 0 ? "" : "p"))
                          : json::array({json::array({1, 4999 + pick(2)})});
    case FieldKind::kMessages: {
      static const std::array<const char*, 5> roles = {"user", "tool", "function", "x", ""};
      return json::array({{{"role", roles[pick(roles.size())]}, {"content", "c"}}});
    }
    case FieldKind::kObject:
      return json{{pick(2) == 0 ? "enable_thinking" : "tokenize", pick(2) == 0}};
    default:
      return others[pick(others.size())];
  }
}

}  // namespace

TEST_CASE("bad request: random requests get one verdict at both doors", "[server]") {
  constexpr int kRequests = 20'000;
  RequestLimits limits;
  limits.chat_template_kwargs = {"enable_thinking"};
  std::mt19937_64 random(20'260'801);
  int compared = 0;
  int passed = 0;
  for (int i = 0; i < kRequests; ++i) {
    const auto user = static_cast<FieldUsers>(1U << (random() % 5));
    json body = plain_request(user);
    const std::uint64_t num_fields = 1 + random() % 5;
    for (std::uint64_t k = 0; k < num_fields; ++k) {
      const FieldRow& row = field_table()[random() % field_table().size()];
      const bool on_both = row.standing == FieldStanding::kSupported && row.not_on_grpc.empty();
      if ((row.users & user) != 0 && on_both)
        body[std::string(row.name)] = random_value(row, random);
    }
    INFO("request " << i << ": " << body.dump().substr(0, 500));
    const DoorVerdict rest = rest_verdict(user, body, limits);
    passed += rest.code ? 0 : 1;
    const auto grpc = grpc_verdict(user, body, limits);
    if (!grpc) continue;
    ++compared;
    if (*grpc == rest) continue;  // a CHECK for each would be slow
    CHECK(*grpc == rest);
  }
  CHECK(passed > kRequests / 10);
  CHECK(passed < kRequests * 9 / 10);
#ifdef KVASIR_WITH_GRPC
  CHECK(compared > kRequests / 2);
#endif
}
