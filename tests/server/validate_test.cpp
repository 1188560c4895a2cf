// Ranges of request fields, each at its border: the last value that passes and the first that does
// not.
#include "server/validate.h"

#include "tests/support/catch.h"

#include <cmath>
#include <functional>
#include <limits>

using namespace kvasir;
using namespace kvasir::server;

namespace {

constexpr std::uint32_t kVocabSize = 300;
const RequestLimits kLimits;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

ValidationBounds bounds() { return {kVocabSize, kLimits}; }

CompletionFields completion() {
  CompletionFields fields;
  fields.prompts = {std::string("x")};
  return fields;
}

ChatFields chat() {
  ChatFields fields;
  fields.messages.push_back({.role = "user", .content = "x", .name = {}, .tool_call_id = {}});
  return fields;
}

/// The field at fault, or "" when the request passes; both endpoints must agree.
std::string fault_of(const std::function<void(GenerateFields&)>& change) {
  CompletionFields completion_fields = completion();
  ChatFields chat_fields = chat();
  change(completion_fields);
  change(chat_fields);
  const auto first = validate(completion_fields, bounds());
  const auto second = validate(chat_fields, bounds());
  const std::string fault = first ? "" : first.error().param;
  CHECK(fault == (second ? "" : second.error().param));
  if (!first) CHECK(first.error().code == ErrorCode::kInvalidValue);
  return fault;
}

struct NumberRange {
  std::string name;
  std::optional<double> GenerateFields::*field;
  double low = 0;
  double high = 0;
};

}  // namespace

TEST_CASE("validate: numbers pass up to their borders and only when finite", "[server]") {
  const std::vector<NumberRange> ranges = {
      {"temperature", &GenerateFields::temperature, 0, 2},
      {"top_p", &GenerateFields::top_p, 0, 1},
      {"min_p", &GenerateFields::min_p, 0, 1},
      {"presence_penalty", &GenerateFields::presence_penalty, -2, 2},
      {"frequency_penalty", &GenerateFields::frequency_penalty, -2, 2},
      {"repetition_penalty", &GenerateFields::repetition_penalty, 1e-3, 10},
  };
  for (const NumberRange& range : ranges) {
    INFO(range.name);
    const auto with = [&range](double value) {
      return fault_of([&](GenerateFields& fields) { fields.*range.field = value; });
    };
    CHECK(with(range.low).empty());
    CHECK(with(range.high).empty());
    for (const double bad : {std::nextafter(range.high, 100.0), kNan, kInf, -kInf})
      CHECK(with(bad) == range.name);
    if (range.name != "repetition_penalty")
      CHECK(with(std::nextafter(range.low, -100.0)) == range.name);
  }
  const auto penalty = [](double value) {
    return fault_of([&](GenerateFields& fields) { fields.repetition_penalty = value; });
  };
  CHECK(penalty(0.0) == "repetition_penalty");
  CHECK(penalty(1e-300) == "repetition_penalty");  // zero as a float
}

TEST_CASE("validate: integers pass up to their borders", "[server]") {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const auto check = [](const char* name, std::optional<std::int64_t> GenerateFields::*field,
                        const std::vector<std::int64_t>& good,
                        const std::vector<std::int64_t>& bad) {
    INFO(name);
    for (const std::int64_t value : good)
      CHECK(fault_of([&](GenerateFields& f) { f.*field = value; }).empty());
    for (const std::int64_t value : bad)
      CHECK(fault_of([&](GenerateFields& f) { f.*field = value; }) == name);
  };
  check("n", &GenerateFields::n, {1, 128}, {0, -1, 129, 1'000'000'000, kMax});
  check("max_tokens", &GenerateFields::max_tokens, {1, kMax}, {0, -1});  // 0 has no echo here
  check("min_tokens", &GenerateFields::min_tokens, {0, 5}, {-1});
  check("top_k", &GenerateFields::top_k, {-1, 0, 1, 2147483647}, {-2, 2147483648});
  check("seed", &GenerateFields::seed, {-1, 0, kMax}, {});
  check("priority", &GenerateFields::priority, {-2147483648LL, 2147483647}, {2147483648LL, kMax});
  check("timeout_ms", &GenerateFields::timeout_ms, {1, 604'800'000},
        {0, -1, 604'800'001, kMax, -kMax - 1});
  CHECK(fault_of([](GenerateFields& f) { f.max_tokens = 4, f.min_tokens = 5; }) == "min_tokens");
}

TEST_CASE("validate: n times prompts is bounded before anything is copied", "[server]") {
  CompletionFields fields = completion();
  fields.prompts.assign(2, std::string("x"));
  fields.n = 64;
  CHECK(validate(fields, bounds()).has_value());
  fields.n = 65;
  CHECK(validate(fields, bounds()).error().param == "n");
  fields.n = 1;
  fields.prompts.assign(129, std::string("x"));
  CHECK(!validate(fields, bounds()).has_value());
}

TEST_CASE("validate: too many logprobs are told by the name that was given", "[server]") {
  ChatFields fields = chat();
  fields.logprobs = true;
  fields.top_logprobs = 20;
  fields.max_tokens = 1 << 20;
  REQUIRE(!validate(fields, bounds()));
  CHECK(validate(fields, bounds()).error().param == "max_tokens");
  fields.max_tokens.reset();
  fields.max_completion_tokens = 1 << 20;
  CHECK(validate(fields, bounds()).error().param == "max_completion_tokens");
}

TEST_CASE("validate: prompts are all texts or all token ids", "[server]") {
  CompletionFields fields = completion();
  fields.prompts = {std::string("x"), std::string("y"), std::vector<std::int64_t>{1}};
  const auto mixed = validate(fields, bounds());
  REQUIRE(!mixed);
  CHECK(mixed.error().code == ErrorCode::kInvalidType);
  CHECK(mixed.error().param == "prompt[2]");
  fields.prompts.pop_back();
  CHECK(validate(fields, bounds()));
}

TEST_CASE("validate: logit_bias has one order, whichever door it came by", "[server]") {
  CompletionFields fields = completion();
  fields.logit_bias = {{"18", 1.5}, {"5", -1.0}};
  const auto params = validate(fields, bounds());
  REQUIRE(params);
  CHECK(params->sampling.logit_bias ==
        std::vector<std::pair<TokenId, float>>{{5, -1.0F}, {18, 1.5F}});
}

TEST_CASE("validate: logit_bias takes decimal ids below the logits width", "[server]") {
  const auto with = [](const std::string& key, double bias) {
    return fault_of([&](GenerateFields& f) { f.logit_bias = {{key, bias}}; });
  };
  CHECK(with("0", -100).empty());
  CHECK(with("299", 100).empty());
  for (const char* key :
       {"300", "-1", "abc", "1.5", "99999999999999999999", "", "01", "+1", " 1", "1 "}) {
    INFO(key);
    CHECK(with(key, 1) == "logit_bias");
  }
  for (const double bias : {100.5, -101.0, kNan, kInf}) CHECK(with("1", bias) == "logit_bias");
  CHECK(fault_of([](GenerateFields& f) {
          for (int i = 0; i < 100'000; ++i) f.logit_bias.emplace_back(std::to_string(i), 1.0);
        }) == "logit_bias");
}

TEST_CASE("validate: stops", "[server]") {
  const auto with = [](std::vector<std::string> stop) {
    return fault_of([&](GenerateFields& f) { f.stop = stop; });
  };
  CHECK(with({std::string(256, 'x')}).empty());
  CHECK(with(std::vector<std::string>(16, "x")).empty());
  CHECK(with({""}) == "stop");
  CHECK(with(std::vector<std::string>(17, "x")) == "stop");
  CHECK(with({std::string(257, 'x')}) == "stop");
  CHECK(with({std::string(1 << 20, 'x')}) == "stop");
  const auto ids = [](std::vector<std::int64_t> stop_ids) {
    return fault_of([&](GenerateFields& f) { f.stop_token_ids = stop_ids; });
  };
  CHECK(ids({0, 299}).empty());
  for (const std::int64_t id : {std::int64_t{300}, std::int64_t{-1}, std::int64_t{1} << 31U}) {
    CHECK(ids({1, id}) == "stop_token_ids[1]");
  }
  CompletionFields fields = completion();
  fields.stop_token_ids = {5, 3, 5};
  CHECK(validate(fields, bounds())->stop_token_ids == std::vector<TokenId>{3, 5});
}

TEST_CASE("validate: logprobs", "[server]") {
  CompletionFields fields = completion();
  for (const std::int64_t good : {0, 20}) {
    fields.logprobs = good;
    CHECK(validate(fields, bounds())->top_logprobs == static_cast<std::uint32_t>(good));
  }
  for (const std::int64_t bad : {std::int64_t{21}, std::int64_t{-1}, std::int64_t{4294967295}}) {
    fields.logprobs = bad;
    CHECK(validate(fields, bounds()).error().param == "logprobs");
  }
  ChatFields chat_fields = chat();
  chat_fields.top_logprobs = 5;
  CHECK(validate(chat_fields, bounds()).error().param == "top_logprobs");
  chat_fields.logprobs = true;
  CHECK(validate(chat_fields, bounds())->top_logprobs == 5U);
  chat_fields.top_logprobs = 21;
  CHECK(validate(chat_fields, bounds()).error().param == "top_logprobs");
  chat_fields.top_logprobs.reset();
  CHECK(validate(chat_fields, bounds())->top_logprobs == 0U);
}

TEST_CASE("validate: choices times tokens times logprobs is bounded", "[server]") {
  CompletionFields fields = completion();
  fields.n = 128;
  fields.logprobs = 15;
  fields.max_tokens = 512;  // 128 x 512 x 16 = 2^20
  CHECK(validate(fields, bounds()).has_value());
  fields.max_tokens = 513;
  CHECK(validate(fields, bounds()).error().param == "max_tokens");
  fields.logprobs.reset();
  CHECK(validate(fields, bounds()).has_value());
  ChatFields chat_fields = chat();
  chat_fields.logprobs = true;
  chat_fields.max_tokens = 1 << 20;
  CHECK(validate(chat_fields, bounds()).has_value());
  chat_fields.n = 2;
  CHECK(validate(chat_fields, bounds()).error().param == "max_tokens");
  chat_fields.max_tokens.reset();
  chat_fields.min_tokens = 1 << 20;
  CHECK(validate(chat_fields, bounds()).error().param == "min_tokens");
}

TEST_CASE("validate: max_completion_tokens wins, and may not disagree", "[server]") {
  ChatFields fields = chat();
  fields.max_completion_tokens = 7;
  CHECK(validate(fields, bounds())->max_tokens == 7U);
  fields.max_tokens = 7;
  CHECK(validate(fields, bounds()).has_value());
  fields.max_tokens = 8;
  CHECK(validate(fields, bounds()).error().param == "max_completion_tokens");
}

TEST_CASE("validate: a salt is passed on, and no salt is none", "[server]") {
  CompletionFields fields = completion();
  CHECK(!validate(fields, bounds())->cache_salt);
  fields.cache_salt = std::string("a\0", 2);
  CHECK(validate(fields, bounds())->cache_salt == fields.cache_salt);
  fields.cache_salt = "";
  CHECK(validate(fields, bounds()).error().param == "cache_salt");
  fields.cache_salt = std::string(1025, 'x');
  CHECK(validate(fields, bounds()).error().param == "cache_salt");
}

TEST_CASE("validate: message counts and the value in the message", "[server]") {
  ChatFields fields = chat();
  fields.messages.assign(2049, fields.messages.front());
  CHECK(validate(fields, bounds()).error().param == "messages");
  CompletionFields hot = completion();
  hot.temperature = 2.1;
  CHECK(validate(hot, bounds()).error().message ==
        "temperature must be a number from 0 to 2, not 2.1");
}
