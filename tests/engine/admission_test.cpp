// Both admission policies from end to end: hundreds of mixed requests in a pool that holds a
// fraction of them, and what each reports to have cost.
#include "core/rng.h"
#include "tests/engine/model_engine.h"
#include "tests/support/catch.h"

#include <memory>
#include <utility>
#include <vector>

using namespace kvasir;
using namespace kvasir::engine;
using namespace kvasir::engine::test;
using scheduler::AdmissionPolicy;

namespace {

constexpr std::uint32_t kNumRequests = 240;

/// Short and long prompts, half of which begin alike; answers of 1 to 60 tokens that a token could
/// end (it never does), so that nobody knows how long they get; some are choices of one prompt.
std::vector<std::vector<Request>> mixed_requests() {
  std::vector<std::vector<Request>> submissions;
  for (std::uint32_t i = 0; i < kNumRequests; ++i) {
    const auto number = [i](std::uint64_t salt, std::uint64_t bound) {
      return static_cast<std::uint32_t>(mix64(mix64(salt) ^ i) % bound);
    };
    std::vector<TokenId> prompt = random_tokens(number(1, 2) == 0 ? number(2, 3) : 100 + i, 90);
    prompt.resize(1 + number(3, 90));
    // The first ones are short: the engine learns to expect that.
    Request request = may_end(sampled_request(prompt, i < 40 ? 1 : 1 + number(4, 60), i));
    request.priority = static_cast<std::int32_t>(number(5, 3));
    std::vector<Request> choices(number(6, 8) == 0 ? 3 : 1, request);
    for (std::uint32_t k = 0; k < choices.size(); ++k) {
      choices[k].sampling.choice_index = k;
      choices[k].fork_group = choices.size() > 1 ? i + 1 : 0;
    }
    submissions.push_back(std::move(choices));
  }
  return submissions;
}

struct Outcome {
  std::vector<std::shared_ptr<AnswerSink>> sinks;
  EngineStatus status;
};

/// Submits a few with every step, cancels one in 20, and looks at the gauges after each step.
Outcome run_mixed(const NamedModel& model, AdmissionPolicy admission) {
  ModelEngineOptions options;
  options.num_blocks = blocks_for(model, 150, 25, options);  // two of the longest and a half
  options.admission = admission;
  ModelEngine engine(*model.model, options);
  Outcome outcome;
  const auto step = [&] {
    const bool more = engine.engine().step();
    const EngineStatus now = engine.status();
    REQUIRE(now.live_blocks + now.free_blocks == now.total_blocks);
    REQUIRE(now.reserved_blocks <= now.free_blocks);
    REQUIRE(now.taken_blocks_total - now.returned_blocks_total == now.live_blocks);
    return more;
  };
  std::uint32_t next = 0;
  for (const std::vector<Request>& choices : mixed_requests()) {
    const auto sinks = engine.submit_together(choices);
    outcome.sinks.insert(outcome.sinks.end(), sinks.begin(), sinks.end());
    if (++next % 4 == 0) step();
    if (next % 20 == 0) {
      engine.engine().cancel(
          {.id = sinks[0]->id, .cause = CancelCause::kClientGone, .counted_tokens = {}});
    }
  }
  while (step()) {
  }
  outcome.status = engine.status();
  return outcome;
}

void check_receipts(const Outcome& outcome) {
  std::uint64_t taken = 0;
  std::uint64_t returned = 0;
  for (const auto& sink : outcome.sinks) {
    const SequenceUsage& usage = sink->finish->usage;
    taken += usage.taken_kv_bytes;
    returned += usage.returned_kv_bytes;
    CHECK(usage.shared_kv_bytes <= usage.peak_kv_bytes);
    CHECK((usage.peak_kv_bytes > 0) == (usage.computed_tokens > 0));
    CHECK((usage.attention_scores_all_layers > 0) == (usage.computed_tokens > 0));
  }
  CHECK(taken == returned);
  CHECK(taken == outcome.status.taken_blocks_total * outcome.status.bytes_per_block);
  CHECK(returned == outcome.status.returned_blocks_total * outcome.status.bytes_per_block);
}

}  // namespace

TEST_CASE(
    "Admission: with reserve nothing is preempted, optimistic preempts, and both give the same",
    "[engine]") {
  const NamedModel& model = small_models()[GENERATE(range(std::size_t{0}, small_models().size()))];
  INFO(model.name);
  const Outcome reserved = run_mixed(model, AdmissionPolicy::kReserve);
  const Outcome optimistic = run_mixed(model, AdmissionPolicy::kOptimistic);
  CHECK(reserved.status.preemptions_total == 0);
  CHECK(reserved.status.recomputed_tokens_total == 0);
  // Where all layers have a window the longest needs little more than what it begins with.
  const bool all_slide = blocks_for(model, 150, 10) == blocks_for(model, 500, 10);
  CHECK((optimistic.status.preemptions_total > 0 || all_slide));
  REQUIRE(reserved.sinks.size() == optimistic.sinks.size());
  for (const Outcome* outcome : {&reserved, &optimistic}) {
    CHECK(outcome->status.live_blocks == 0);
    CHECK(outcome->status.reserved_blocks == 0);
    CHECK(outcome->status.finished_error_total == 0);
    CHECK(outcome->status.rejected_total == 0);
    for (const auto& sink : outcome->sinks) REQUIRE(sink->finish.has_value());
    check_receipts(*outcome);
  }
  for (std::size_t i = 0; i < reserved.sinks.size(); ++i) {
    CAPTURE(i);
    const AnswerSink& a = *reserved.sinks[i];
    const AnswerSink& b = *optimistic.sinks[i];
    const std::size_t common = std::min(a.answer.tokens.size(), b.answer.tokens.size());
    CHECK(beginning(a.answer, common) == beginning(b.answer, common));
    // Only those that were cancelled may differ in length.
    if (a.finish->reason == FinishReason::kLength && b.finish->reason == FinishReason::kLength) {
      CHECK(a.answer.tokens.size() == b.answer.tokens.size());
    }
  }
}

TEST_CASE("Admission: what can never fit is refused alike, before anything is computed",
          "[engine]") {
  const AdmissionPolicy admission =
      GENERATE(AdmissionPolicy::kReserve, AdmissionPolicy::kOptimistic);
  ModelEngine engine(*small_models()[0].model, {.num_blocks = 4, .admission = admission});
  const auto large = engine.submit(may_end(sampled_request(random_tokens(1, 40), 26, 1)));
  const auto fits = engine.submit(may_end(sampled_request(random_tokens(2, 40), 25, 1)));
  engine.run_until_idle();
  REQUIRE(large->finish.has_value());
  REQUIRE(large->finish->error.has_value());
  CHECK(large->finish->error->code == ErrorCode::kContextLengthExceeded);
  CHECK(large->finish->usage.computed_tokens == 0);
  CHECK(fits->finish->reason == FinishReason::kLength);
  CHECK(fits->answer.tokens.size() == 25);
}
