// The engine with the real scheduler and KV bookkeeping, and an executor whose tokens depend on the
// prefix alone.
#include "engine/engine.h"

#include "engine/engine_thread.h"
#include "engine/retry_after.h"
#include "tests/support/catch.h"
#include "tests/support/fake_engine_parts.h"

#include <memory>
#include <span>
#include <thread>
#include <vector>

using namespace kvasir;
using namespace kvasir::engine;
using kvasir::testing::logprob_after;
using kvasir::testing::PrefixExecutor;
using kvasir::testing::RecordingSink;
using kvasir::testing::token_after;

namespace {

constexpr std::uint32_t kVocab = 1000;

EngineOptions small_engine(std::uint32_t num_blocks) {
  EngineOptions options;
  options.geometry = {
      .groups = {{.num_layers = 2, .num_kv_heads = 1, .head_dim = 8, .window_tokens = 0}},
      .type = kvcache::KvType::kF16,
      .block_tokens = 16};
  options.num_blocks = num_blocks;
  options.limits = {.max_step_tokens = 24, .max_sequences = 8, .context_tokens = 256};
  options.max_waiting_sequences = 16;
  return options;
}

Request make_request(std::vector<TokenId> prompt, std::uint32_t max_tokens) {
  Request request;
  request.prompt_tokens = std::move(prompt);
  request.stop.max_tokens = max_tokens;
  return request;
}

std::vector<TokenId> make_prompt(std::uint32_t seed, std::size_t length) {
  std::vector<TokenId> prompt;
  for (std::size_t i = 0; i < length; ++i) {
    prompt.push_back(static_cast<TokenId>(mix64(seed * 1000003ULL + i) % kVocab));
  }
  return prompt;
}

std::vector<TokenId> expected_tokens(std::vector<TokenId> prefix, std::uint32_t count) {
  std::vector<TokenId> tokens;
  for (std::uint32_t i = 0; i < count; ++i) {
    tokens.push_back(token_after(prefix, kVocab));
    prefix.push_back(tokens.back());
  }
  return tokens;
}

struct Fixture {
  explicit Fixture(const EngineOptions& options) : engine(options, executor, clock) {}

  std::pair<SequenceId, std::shared_ptr<RecordingSink>> submit(
      Request request, std::size_t sink_capacity = SIZE_MAX) {
    auto sink = std::make_shared<RecordingSink>(sink_capacity);
    const SequenceId id = engine.next_sequence_id();
    std::vector<Submit> batch;
    batch.push_back({id, std::move(request), sink});
    REQUIRE(engine.submit(std::move(batch)).has_value());
    return {id, sink};
  }
  void run_until_idle() {
    while (engine.step()) {
    }
  }

  VirtualClock clock;
  PrefixExecutor executor{kVocab};
  Engine engine;
};

}  // namespace

TEST_CASE("Engine: a sequence gets its tokens and one finish, and its blocks come home",
          "[engine]") {
  Fixture fixture(small_engine(32));
  const auto prompt = make_prompt(1, 40);
  const auto sequence = fixture.submit(make_request(prompt, 20));
  fixture.run_until_idle();
  CHECK(sequence.second->tokens() == expected_tokens(prompt, 20));
  CHECK(sequence.second->ended_well());
  const auto finish = sequence.second->finish();
  REQUIRE(finish.has_value());
  CHECK(finish->reason == FinishReason::kLength);
  CHECK(finish->usage.prompt_tokens == 40);
  CHECK(finish->usage.completion_tokens == 20);
  CHECK(finish->usage.computed_tokens == 40 + 20 - 1);  // p + n - 1 token passes with a cache
  CHECK(fixture.engine.status().free_blocks == 32);
  CHECK(fixture.engine.status().live_blocks == 0);
}

TEST_CASE("Engine: a budget that forces preemption changes no token", "[engine]") {
  Fixture fixture(small_engine(14));  // 224 tokens for about 6 * 100
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (std::uint32_t i = 0; i < 6; ++i)
    sinks.push_back(fixture.submit(make_request(make_prompt(i, 30 + i), 70)).second);
  fixture.run_until_idle();
  for (std::uint32_t i = 0; i < 6; ++i) {
    CHECK(sinks[i]->tokens() == expected_tokens(make_prompt(i, 30 + i), 70));
    CHECK(sinks[i]->ended_well());
  }
  CHECK(fixture.engine.status().preemptions_total > 0);
  CHECK(fixture.engine.status().live_blocks == 0);
}

namespace {

Request scoring_request(std::vector<TokenId> prompt, std::uint32_t max_tokens) {
  Request request = make_request(std::move(prompt), max_tokens);
  request.prompt_logprobs = 1;
  return request;
}

/// That the sink got the logprobs of all tokens of the prompt but the first, once each, in order.
void check_scores(const RecordingSink& sink, const std::vector<TokenId>& prompt) {
  std::uint32_t next = 1;
  for (const PromptLogprobs& scores : sink.scores()) {
    REQUIRE(scores.first_token == next);
    REQUIRE(scores.top.size() == scores.tokens.size());
    for (std::size_t i = 0; i < scores.tokens.size(); ++i, ++next) {
      const float expected = logprob_after(std::span(prompt).first(next), prompt[next]);
      CHECK(scores.tokens[i].logprob == expected);
      CHECK(scores.top[i] == TokenLogprob{prompt[next - 1], expected});
    }
  }
  CHECK(next == prompt.size());
}

}  // namespace

TEST_CASE("Engine: prompt logprobs come before the tokens, once each, also after preemption",
          "[engine]") {
  Fixture fixture(small_engine(14));  // 224 tokens for about 6 * 130
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (std::uint32_t i = 0; i < 6; ++i) {
    sinks.push_back(fixture.submit(scoring_request(make_prompt(i, 90 + i), 40)).second);
  }
  fixture.run_until_idle();
  for (std::uint32_t i = 0; i < 6; ++i) {
    const auto prompt = make_prompt(i, 90 + i);
    check_scores(*sinks[i], prompt);
    CHECK(sinks[i]->tokens() == expected_tokens(prompt, 40));
    CHECK(sinks[i]->ended_well());
  }
  CHECK(fixture.engine.status().preemptions_total > 0);
  CHECK(fixture.engine.status().live_blocks == 0);
}

TEST_CASE("Engine: prompt logprobs are the same from a warm cache, of which they take nothing",
          "[engine]") {
  Fixture fixture(small_engine(64));
  const auto prompt = make_prompt(7, 64);
  const auto cold = fixture.submit(scoring_request(prompt, 10)).second;
  fixture.run_until_idle();
  const auto warm = fixture.submit(scoring_request(prompt, 10)).second;
  fixture.run_until_idle();
  for (const auto& sink : {cold, warm}) {
    check_scores(*sink, prompt);
    CHECK(sink->tokens() == expected_tokens(prompt, 10));
    CHECK(sink->finish()->usage.cached_tokens == 0);
  }
  const auto plain = fixture.submit(make_request(prompt, 10)).second;
  fixture.run_until_idle();
  CHECK(plain->scores().empty());
  CHECK(plain->finish()->usage.cached_tokens == 63);
}

TEST_CASE("Engine: a request for the prompt alone ends with its length and no token", "[engine]") {
  Fixture fixture(small_engine(16));
  for (const std::size_t length : {1U, 2U, 100U, 256U}) {  // up to the whole context
    const auto prompt = make_prompt(3, length);
    const auto sink = fixture.submit(scoring_request(prompt, 0)).second;
    fixture.run_until_idle();
    check_scores(*sink, prompt);
    CHECK(sink->tokens().empty());
    CHECK(sink->ended_well());
    CHECK(sink->finish()->reason == FinishReason::kLength);
    CHECK(sink->finish()->usage.completion_tokens == 0);
    CHECK(fixture.engine.status().live_blocks == 0);
  }
}

TEST_CASE("Engine: a prefix of an earlier turn is found and changes no token", "[engine]") {
  Fixture fixture(small_engine(64));
  const auto prompt = make_prompt(7, 64);
  const auto cold = fixture.submit(make_request(prompt, 10)).second;
  fixture.run_until_idle();
  const auto warm = fixture.submit(make_request(prompt, 10)).second;
  fixture.run_until_idle();
  CHECK(cold->tokens() == warm->tokens());
  CHECK(cold->finish()->usage.cached_tokens == 0);
  CHECK(warm->finish()->usage.cached_tokens == 63);  // never the whole prompt
}

TEST_CASE("Engine: a stop token ends a sequence and is counted", "[engine]") {
  Fixture fixture(small_engine(32));
  const auto prompt = make_prompt(3, 5);
  const auto expected = expected_tokens(prompt, 9);
  Request request = make_request(prompt, 50);
  request.stop.stop_token_ids = {expected[8]};
  const auto sink = fixture.submit(std::move(request)).second;
  fixture.run_until_idle();
  CHECK(sink->tokens() == expected);
  CHECK(sink->finish()->reason == FinishReason::kStop);
  CHECK(sink->finish()->stop_token == expected[8]);
}

TEST_CASE("Engine: a cancelled sequence frees its blocks within one step", "[engine]") {
  Fixture fixture(small_engine(32));
  const auto [id, sink] = fixture.submit(make_request(make_prompt(1, 100), 100));
  for (int i = 0; i < 8; ++i) REQUIRE(fixture.engine.step());
  REQUIRE(fixture.engine.status().live_blocks > 0);
  fixture.engine.cancel({.id = id, .cause = CancelCause::kClientGone, .counted_tokens = {}});
  fixture.engine.step();
  CHECK(fixture.engine.status().live_blocks == 0);
  CHECK(sink->ended_well());
  CHECK(sink->finish()->reason == FinishReason::kCancelled);
  CHECK(
      fixture.engine.status().cancelled_total[static_cast<std::size_t>(CancelCause::kClientGone)] ==
      1);
  fixture.engine.cancel(
      {.id = id, .cause = CancelCause::kClientGone, .counted_tokens = {}});  // again: ignored
  fixture.engine.step();
  CHECK(sink->ended_well());
}

TEST_CASE("Engine: tokens past a stop string are waste, and the end counts as a stop", "[engine]") {
  Fixture fixture(small_engine(32));
  const auto [id, sink] = fixture.submit(make_request(make_prompt(1, 10), 100));
  for (int i = 0; i < 6; ++i) REQUIRE(fixture.engine.step());
  const auto generated = static_cast<std::uint32_t>(sink->tokens().size());
  REQUIRE(generated > 2);
  fixture.engine.cancel(
      {.id = id, .cause = CancelCause::kStopString, .counted_tokens = generated - 2});
  fixture.engine.step();
  CHECK(fixture.engine.status().wasted_tokens_total == 2);
  CHECK(fixture.engine.status().finished_stop_total == 1);
}

TEST_CASE("Engine: a sink over its bound loses its sequence and disturbs nobody", "[engine]") {
  Fixture fixture(small_engine(32));
  const auto prompt = make_prompt(2, 10);
  const auto slow = fixture.submit(make_request(make_prompt(1, 10), 50), 5).second;
  const auto good = fixture.submit(make_request(prompt, 50)).second;
  fixture.run_until_idle();
  CHECK(slow->finish()->reason == FinishReason::kCancelled);
  CHECK(slow->finish()->cancel_cause == CancelCause::kSlowClient);
  CHECK(slow->tokens().size() == 6);
  CHECK(slow->ended_well());
  CHECK(good->tokens() == expected_tokens(prompt, 50));
}

TEST_CASE("Engine: a sink that refuses its very last token is told so", "[engine]") {
  Fixture fixture(small_engine(32));
  const auto sink = fixture.submit(make_request(make_prompt(1, 10), 6), 5).second;
  fixture.run_until_idle();
  CHECK(sink->ended_well());
  CHECK(sink->finish()->reason == FinishReason::kCancelled);
  CHECK(sink->finish()->cancel_cause == CancelCause::kSlowClient);
}

TEST_CASE("Engine: it shows busy while a step runs", "[engine]") {
  Fixture fixture(small_engine(32));
  bool busy = false;
  fixture.executor.before_step = [&](const runtime::Batch&) {
    busy = fixture.engine.status().busy;
  };
  (void)fixture.submit(make_request(make_prompt(1, 4), 1));
  fixture.engine.step();
  CHECK(busy);
  CHECK_FALSE(fixture.engine.status().busy);
}

TEST_CASE("Engine: a sink that has its last event finds the status up to date", "[engine]") {
  struct StatusSink final : TokenSink {
    explicit StatusSink(const Engine& observed) : engine(observed) {}
    bool on_token(TokenEvent /*event*/) noexcept override { return true; }
    void on_finish(FinishEvent /*event*/) noexcept override { at_finish = engine.status(); }
    const Engine& engine;
    EngineStatus at_finish;
  };
  Fixture fixture(small_engine(32));
  auto sink = std::make_shared<StatusSink>(fixture.engine);
  std::vector<Submit> batch;
  batch.push_back({fixture.engine.next_sequence_id(), make_request(make_prompt(1, 20), 3), sink});
  REQUIRE(fixture.engine.submit(std::move(batch)).has_value());
  fixture.run_until_idle();
  CHECK(sink->at_finish.live_blocks == 0);
  CHECK(sink->at_finish.finished_length_total == 1);
  CHECK(sink->at_finish.generation_tokens_total == 3);
}

TEST_CASE("Engine: an event's time is the end of its pass, and steps are counted by their tokens",
          "[engine]") {
  struct TimeSink final : TokenSink {
    bool on_token(TokenEvent event) noexcept override {
      times.push_back(event.at);
      return true;
    }
    void on_finish(FinishEvent event) noexcept override { times.push_back(event.at); }
    std::vector<TimePoint> times;
  };
  Fixture fixture(small_engine(32));
  fixture.executor.before_step = [&](const runtime::Batch&) {
    fixture.clock.advance(std::chrono::milliseconds(10));
  };
  const auto sink = std::make_shared<TimeSink>();
  std::vector<Submit> batch;
  batch.push_back({fixture.engine.next_sequence_id(), make_request(make_prompt(1, 30), 3), sink});
  REQUIRE(fixture.engine.submit(std::move(batch)).has_value());
  fixture.run_until_idle();
  // Passes of 24 and 6 tokens of the prompt, whose last gives the first token, then of one each.
  const auto after = [](int passes) {
    return TimePoint{} + passes * std::chrono::milliseconds(10);
  };
  CHECK(sink->times == std::vector<TimePoint>{after(2), after(3), after(4), after(4)});
  const EngineStatus status = fixture.engine.status();
  for (std::size_t i = 0; i <= kStepTokenBounds.size(); ++i) {
    const std::uint64_t bound = i < kStepTokenBounds.size() ? kStepTokenBounds.at(i) : 0;
    const std::uint64_t expected = bound == 1 ? 2 : bound == 10 || bound == 50 ? 1 : 0;
    CHECK(status.steps_by_tokens.at(i) == expected);
  }
}

TEST_CASE("Engine: how long a full queue stays full is told from what runs and how long steps take",
          "[engine]") {
  EngineOptions options = small_engine(64);
  options.max_waiting_sequences = 1;
  Fixture fixture(options);
  std::chrono::milliseconds step_time{0};
  fixture.executor.before_step = [&](const runtime::Batch&) { fixture.clock.advance(step_time); };
  const auto seconds = [&] { return fixture.engine.status().retry_after_seconds; };
  CHECK(seconds() == 1);
  // As many tokens as may be: nobody has to guess how many.
  const auto request = [](std::uint32_t seed, std::uint32_t num_tokens) {
    Request whole = make_request(make_prompt(seed, 4), num_tokens);
    whole.stop.min_tokens = num_tokens;
    return whole;
  };
  (void)fixture.submit(request(1, 200));
  fixture.engine.step();
  CHECK(seconds() == 1);  // steps have taken no time yet

  // With the first step all of its prompt and a token; then a token each.
  step_time = std::chrono::milliseconds(500);
  const auto [soonest, sink] = fixture.submit(request(2, 21));
  fixture.engine.step();
  CHECK(seconds() == 10);  // 20 tokens of half a second
  for (int i = 0; i < 3; ++i) fixture.engine.step();
  CHECK(seconds() == 9);  // 17 of them, rounded up
  fixture.engine.cancel({.id = soonest, .cause = CancelCause::kClientGone, .counted_tokens = {}});
  fixture.engine.step();
  CHECK(seconds() == kMaxRetryAfterSeconds);  // the other has 194 to go
  // The mean follows what steps take now, but not one of them.
  step_time = std::chrono::milliseconds(10);
  fixture.engine.step();
  CHECK(seconds() == kMaxRetryAfterSeconds);
  for (int i = 0; i < 59; ++i) fixture.engine.step();
  CHECK(seconds() == 2);  // 134 of about 10 ms
  fixture.run_until_idle();
  CHECK(seconds() == 1);
}

TEST_CASE("Engine: a list of submissions past the bound is refused whole", "[engine]") {
  Fixture fixture(small_engine(32));  // 8 running + 16 waiting
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (std::uint32_t i = 0; i < 22; ++i)
    sinks.push_back(fixture.submit(make_request(make_prompt(i, 4), 3)).second);
  const auto list_of = [&](std::size_t count) {
    std::vector<Submit> batch;
    for (std::size_t i = 0; i < count; ++i) {
      batch.push_back({fixture.engine.next_sequence_id(), make_request({1, 2, 3}, 2),
                       std::make_shared<RecordingSink>()});
    }
    return batch;
  };
  const auto refused = fixture.engine.submit(list_of(3));
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == ErrorCode::kQueueFull);
  CHECK(fixture.engine.check_room(3).error().code == ErrorCode::kQueueFull);
  CHECK(fixture.engine.check_room(25).error().code == ErrorCode::kInvalidValue);
  CHECK(fixture.engine.submit(list_of(2)).has_value());
  fixture.run_until_idle();
  for (const auto& sink : sinks) CHECK(sink->ended_well());
  CHECK(fixture.engine.submit(list_of(24)).has_value());  // everything came home
}

TEST_CASE("Engine: an executor failure ends the sequences of that step only", "[engine]") {
  Fixture fixture(small_engine(32));
  const auto failed = fixture.submit(make_request(make_prompt(1, 10), 20)).second;
  fixture.executor.fail_next = true;
  fixture.engine.step();
  CHECK(failed->finish()->reason == FinishReason::kError);
  CHECK(fixture.engine.status().live_blocks == 0);
  const auto prompt = make_prompt(1, 10);
  const auto good = fixture.submit(make_request(prompt, 20)).second;
  fixture.run_until_idle();
  CHECK(good->tokens() == expected_tokens(prompt, 20));
}

TEST_CASE("Engine: deadlines and what can never fit end with their error", "[engine]") {
  Fixture fixture(small_engine(4));  // 64 tokens
  Request late = make_request(make_prompt(1, 10), 20);
  late.deadline = fixture.clock.now() + std::chrono::milliseconds(5);
  const auto late_sink = fixture.submit(std::move(late)).second;
  const auto large = fixture.submit(make_request(make_prompt(2, 70), 20)).second;
  REQUIRE(fixture.engine.step());
  CHECK(large->finish()->error->code == ErrorCode::kContextLengthExceeded);
  fixture.clock.advance(std::chrono::milliseconds(6));
  fixture.run_until_idle();
  CHECK(late_sink->finish()->error->code == ErrorCode::kDeadlineExceeded);
  CHECK(fixture.engine.status().cancelled_total[static_cast<std::size_t>(CancelCause::kDeadline)] ==
        1);
  CHECK(fixture.engine.status().finished_error_total == 1);  // the one that can never fit
  CHECK(fixture.engine.status().rejected_total == 1);
  CHECK(late_sink->ended_well());
  CHECK(fixture.engine.status().live_blocks == 0);
}

TEST_CASE("Engine: a drain takes no more, lets the running finish, and ends them at its deadline",
          "[engine]") {
  Fixture fixture(small_engine(32));
  const auto quick = fixture.submit(make_request(make_prompt(1, 4), 3)).second;
  const auto slow = fixture.submit(make_request(make_prompt(2, 4), 200)).second;
  fixture.engine.step();
  fixture.engine.drain(fixture.clock.now() + std::chrono::seconds(1));
  const auto refused = fixture.engine.submit({});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == ErrorCode::kDraining);
  for (int i = 0; i < 10; ++i) fixture.engine.step();
  CHECK(quick->finish()->reason == FinishReason::kLength);
  CHECK_FALSE(slow->finish().has_value());
  fixture.clock.advance(std::chrono::seconds(2));
  fixture.engine.step();
  REQUIRE(slow->finish().has_value());
  CHECK(slow->finish()->cancel_cause == CancelCause::kDrain);
  CHECK_FALSE(fixture.engine.wait_for_work());
}

TEST_CASE("EngineThread: every accepted submission of many threads ends once, also across a stop",
          "[engine]") {
  for (int round = 0; round < 20; ++round) {
    SteadyClock clock;
    PrefixExecutor executor(kVocab);
    Engine engine(small_engine(20), executor, clock);
    std::vector<std::vector<std::shared_ptr<RecordingSink>>> accepted(3);
    {
      EngineThread thread(engine);
      std::vector<std::thread> clients;
      for (std::uint32_t client = 0; client < 3; ++client) {
        clients.emplace_back([&, client] {
          for (std::uint32_t i = 0; i < 40; ++i) {
            auto sink = std::make_shared<RecordingSink>();
            const SequenceId id = engine.next_sequence_id();
            std::vector<Submit> batch;
            batch.push_back(
                {id, make_request(make_prompt(client * 100 + i, 3 + i), 1 + i % 7), sink});
            if (!engine.submit(std::move(batch))) continue;
            accepted[client].push_back(sink);
            if (i % 5 == 0)
              engine.cancel({.id = id, .cause = CancelCause::kClientGone, .counted_tokens = {}});
            if (i % 3 == 0) sink->wait_finish();
          }
        });
      }
      if (round % 2 == 0) engine.stop();  // at whatever moment
      for (std::thread& client : clients) client.join();
    }
    for (const auto& sinks : accepted) {
      for (const auto& sink : sinks) CHECK(sink->ended_well());
    }
    CHECK(engine.status().live_blocks == 0);
  }
}
