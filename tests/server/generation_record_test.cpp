// What an observer learns of a generation: every token, prompt and end once, whether a door read
// them or not, and in its client's words.
#include "server/generation_record.h"

#include "server/generate_service.h"
#include "server/running_generation.h"
#include "tests/server/test_server.h"
#include "tests/server/tiny_model.h"
#include "tests/support/catch.h"

#include <atomic>
#include <chrono>
#include <sstream>
#include <string>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint at(Duration since_start) { return TimePoint{} + since_start; }

struct Heard final : RequestObserver {
  void on_refused(ErrorCode) noexcept override {}
  void on_abandoned(CancelCause, std::uint64_t) noexcept override {}
  void on_started(std::uint32_t) noexcept override {}
  void on_prompt(std::uint32_t tokens) noexcept override { prompts.push_back(tokens); }
  void on_first_token(Operation, bool first_of_request, Duration since) noexcept override {
    firsts.push_back(since);
    firsts_of_request += first_of_request ? 1 : 0;
  }
  void on_next_token(Duration since_last) noexcept override { gaps.push_back(since_last); }
  void on_sequence_end(Operation, const SequenceReport& report) noexcept override {
    ends.push_back(report);
  }
  void on_request_end(const RequestReport& report) noexcept override { requests.push_back(report); }

  std::vector<std::uint32_t> prompts;
  std::vector<Duration> firsts;
  int firsts_of_request = 0;
  std::vector<Duration> gaps;
  std::vector<SequenceReport> ends;
  std::vector<RequestReport> requests;
};

/// Prompts of 3 tokens; the request arrived at 1 s.
struct Harness {
  explicit Harness(std::uint32_t num_choices = 1, std::vector<std::string> stop = {},
                   std::uint32_t num_prompts = 1) {
    std::vector<RunningGeneration::Choice> choices;
    std::vector<GenerationRecord::Choice> recorded;
    for (std::uint32_t i = 0; i < num_choices * num_prompts; ++i) {
      AssemblyRules rules{.stop = stop, .ending_token_ids = {kImEnd}, .own_stop_token_ids = {}};
      choices.push_back(
          {.sequence = SequenceId{i}, .prompt_index = i / num_choices, .rules = std::move(rules)});
      recorded.push_back({.prompt_index = i / num_choices, .max_tokens = 9});
    }
    generation = std::make_unique<RunningGeneration>(
        tiny_tokenizer(), std::vector<std::vector<TokenId>>(num_prompts, {1, 2, 3}),
        std::move(choices), [](const engine::Cancel&) {}, [] {});
    generation->set_record(GenerationRecord(heard, Operation::kChat, at(1s),
                                            std::vector<std::uint32_t>(num_prompts, 3), recorded));
    for (std::uint32_t i = 0; i < num_choices * num_prompts; ++i)
      sinks.push_back(generation->sink(i));
  }
  void token(TokenId id, Duration when, std::uint32_t choice = 0) {
    REQUIRE(sinks[choice]->on_token({.token = id, .logprob = 0.0F, .top = {}, .at = at(when)}));
  }
  void finish(FinishReason reason, Duration when, std::optional<CancelCause> cause = {},
              std::uint32_t choice = 0, std::optional<Error> error = {}) {
    engine::FinishEvent event;
    event.reason = reason;
    event.cancel_cause = cause;
    event.error = std::move(error);
    event.at = at(when);
    sinks[choice]->on_finish(std::move(event));
  }
  void poll() { static_cast<void>(generation->poll()); }

  Heard heard;
  std::unique_ptr<RunningGeneration> generation;
  std::vector<std::shared_ptr<engine::TokenSink>> sinks;
};

}  // namespace

TEST_CASE("GenerationRecord: times are the engine's, however late a door reads", "[server]") {
  Harness harness;
  harness.token('a', 3s);
  harness.token('b', 3500ms);
  harness.token('c', 5s);
  harness.finish(FinishReason::kLength, 6s);
  CHECK(harness.heard.firsts.empty());
  harness.poll();
  CHECK(harness.heard.firsts == std::vector<Duration>{2s});
  CHECK(harness.heard.gaps == std::vector<Duration>{500ms, 1500ms});
  CHECK(harness.heard.prompts == std::vector<std::uint32_t>{3});
  REQUIRE(harness.heard.ends.size() == 1);
  const SequenceReport& end = harness.heard.ends[0];
  CHECK(end.reason == FinishReason::kLength);
  CHECK(!end.cause);
  CHECK(end.latency == 5s);
  CHECK(end.prompt_tokens == 3);
  CHECK(end.completion_tokens == 3);
  CHECK(end.max_tokens == 9);
  REQUIRE(harness.heard.requests.size() == 1);
  CHECK(!harness.heard.requests[0].failure);
  CHECK(harness.heard.requests[0].latency == 5s);
  CHECK(harness.heard.requests[0].max_completion_tokens == 3);
}

TEST_CASE("GenerationRecord: a prompt counts once for its choices, a request once for all",
          "[server]") {
  Harness harness(2, {}, 2);
  harness.token('a', 2s, 1);
  harness.token('a', 3s, 0);
  harness.token('b', 4s, 0);
  harness.token('a', 5s, 3);
  for (const std::uint32_t choice : {0U, 1U, 3U})
    harness.finish(FinishReason::kLength, 6s, {}, choice);
  harness.poll();
  CHECK(harness.heard.prompts == std::vector<std::uint32_t>{3, 3});
  CHECK(harness.heard.firsts == std::vector<Duration>{1s, 2s, 4s});
  CHECK(harness.heard.firsts_of_request == 1);
  CHECK(harness.heard.ends.size() == 3);
  CHECK(harness.heard.requests.empty());
  harness.finish(FinishReason::kCancelled, 9s, CancelCause::kClientGone, 2);
  harness.poll();
  REQUIRE(harness.heard.requests.size() == 1);
  CHECK(harness.heard.requests[0].failure == FinishReason::kCancelled);
  CHECK(harness.heard.requests[0].cause == CancelCause::kClientGone);
  CHECK(harness.heard.requests[0].latency == 8s);
  CHECK(harness.heard.requests[0].max_completion_tokens == 2);
}

TEST_CASE("GenerationRecord: a stop string in the last token is a stop, and waste is not counted",
          "[server]") {
  Harness harness(2, {"bc"});
  for (const TokenId id : byte_tokens("abc")) harness.token(id, 2s);
  harness.finish(FinishReason::kLength, 2s);
  for (const TokenId id : byte_tokens("abcdef")) harness.token(id, 2s, 1);
  harness.finish(FinishReason::kCancelled, 2s, CancelCause::kStopString, 1);
  harness.poll();
  REQUIRE(harness.heard.ends.size() == 2);
  for (const SequenceReport& end : harness.heard.ends) {
    CHECK(end.reason == FinishReason::kStop);
    CHECK(!end.cause);
    CHECK(end.completion_tokens == 3);
  }
  CHECK(harness.heard.gaps.size() == 4);
}

TEST_CASE("GenerationRecord: an end that nobody reads counts all the same, and once", "[server]") {
  Harness harness(3);
  harness.token('a', 2s, 0);
  harness.poll();
  harness.token('b', 2s, 0);
  harness.finish(FinishReason::kLength, 3s, {}, 0);  // waits unread
  harness.generation.reset();
  CHECK(harness.heard.ends.size() == 1);
  harness.finish(FinishReason::kCancelled, 4s, CancelCause::kClientGone, 1);  // comes too late
  harness.token('a', 4s, 2);
  harness.finish(FinishReason::kCancelled, 4s, CancelCause::kDrain, 2);
  REQUIRE(harness.heard.ends.size() == 3);
  CHECK(harness.heard.ends[0].reason == FinishReason::kLength);
  CHECK(harness.heard.ends[0].completion_tokens == 1);
  CHECK(harness.heard.ends[1].cause == CancelCause::kClientGone);
  CHECK(harness.heard.ends[2].cause == CancelCause::kDrain);
  CHECK(harness.heard.requests.size() == 1);
  CHECK(harness.heard.prompts.size() == 1);
}

TEST_CASE("GenerationRecord: a stop string that was read stays a stop when the client has gone",
          "[server]") {
  Harness harness(1, {"b"});
  for (const TokenId id : byte_tokens("ab")) harness.token(id, 2s);
  harness.poll();
  harness.generation.reset();
  harness.finish(FinishReason::kCancelled, 3s, CancelCause::kStopString);
  REQUIRE(harness.heard.ends.size() == 1);
  CHECK(harness.heard.ends[0].reason == FinishReason::kStop);
}

TEST_CASE("GenerationRecord: a deadline found by the planner is an abort, other errors are errors",
          "[server]") {
  Harness harness(2);
  harness.finish(FinishReason::kError, 2s, {}, 0, Error{ErrorCode::kDeadlineExceeded, "", ""});
  harness.finish(FinishReason::kError, 2s, {}, 1, Error{ErrorCode::kInternal, "", ""});
  harness.poll();
  REQUIRE(harness.heard.ends.size() == 2);
  CHECK(harness.heard.ends[0].reason == FinishReason::kCancelled);
  CHECK(harness.heard.ends[0].cause == CancelCause::kDeadline);
  CHECK(harness.heard.ends[1].reason == FinishReason::kError);
  CHECK(harness.heard.prompts.empty());
}

namespace {

/// 0 for a series that is not there.
double counted(const TestEngine& test, const std::string& series) {
  std::istringstream lines(test.service->metrics().text({.engine = test.engine->status()}));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(series) && line[series.size()] == ' ')
      return std::stod(line.substr(series.size() + 1));
  }
  return 0;
}

const std::string kLabels = R"({engine="0",model_name="tiny/model")";

}  // namespace

TEST_CASE("GenerateService: what it refuses or nobody wants is counted by code or cause",
          "[server]") {
  TestEngine test;
  CompletionFields fields;
  fields.prompts = {std::string("x"), std::string("y")};
  fields.n = 3;
  fields.max_tokens = 0;
  CHECK(!test.service->complete(fields, [] {}, {}));
  CHECK(counted(test, "kvasir_rejected_requests_total" + kLabels + R"(,code="invalid_value"})") ==
        1);
  fields.max_tokens = 4;
  const std::atomic<bool> gone{true};
  CallContext context;
  context.gone = &gone;
  context.gone_cause = CancelCause::kGrpcCancel;
  CHECK(!test.service->complete(
      fields, [] {}, context));
  const auto aborted = [&](const std::string& cause) {
    std::string series = "kvasir_requests_total" + kLabels;
    series.append(",cause=\"").append(cause).append(R"(",finish_reason="abort"})");
    return counted(test, series);
  };
  CHECK(aborted("grpc_cancel") == 6);
  fields.timeout_ms = 1;
  context.arrival = test.clock.now() - 1s;
  CHECK(!test.service->complete(
      fields, [] {}, context));
  CHECK(aborted("grpc_cancel") == 6);
  CHECK(aborted("deadline") == 6);
  CHECK(counted(test, "kvasir_request_params_n_count" + kLabels + "}") == 0);
}
