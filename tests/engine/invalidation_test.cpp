// Whatever happens to a prefix between two requests (edited, forked, truncated, reclaimed and
// filled again, preempted, slid out of a window, continued), the next request that begins with some
// of it gives what it gives cold: ids and logprobs, bit for bit.
#include "core/rng.h"
#include "tests/engine/model_engine.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace kvasir;
using namespace kvasir::engine;
using namespace kvasir::engine::test;

namespace {

/// Numbers below a bound, one after another, from a seed.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  std::uint32_t below(std::uint64_t bound) {
    return static_cast<std::uint32_t>(mix64(mix64(seed_) ^ next_++) % bound);
  }

 private:
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

/// Answers of one token, so that the engine expects more of them and admits more than has room.
void teach_short_answers(ModelEngine& engine) {
  for (std::uint64_t i = 0; i < 40; ++i) {
    (void)engine.run(may_end(sampled_request(random_tokens(900 + i, 1), 1, i)));
  }
}

struct Submitted {
  Request request;
  std::shared_ptr<AnswerSink> sink;
};

/// That each ended by its length and gave what it gives cold; one whose client left, as much of it
/// as there was time for.
void check_all(const std::vector<Submitted>& submitted, ColdRuns& cold) {
  for (std::size_t i = 0; i < submitted.size(); ++i) {
    CAPTURE(i);
    const Submitted& one = submitted[i];
    REQUIRE(one.sink->finish.has_value());
    const Answer& expected = cold.answer(one.request);
    if (one.sink->finish->reason == FinishReason::kCancelled) {
      CHECK(one.sink->answer == beginning(expected, one.sink->answer.tokens.size()));
      continue;
    }
    REQUIRE(one.sink->finish->reason == FinishReason::kLength);
    CHECK(one.sink->answer == expected);
  }
}

std::vector<TokenId> joined(std::vector<TokenId> first, const std::vector<TokenId>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

TEST_CASE("Invalidation: a turn edited at any position is what it is cold", "[engine]") {
  const NamedModel& model = small_models()[GENERATE(range(std::size_t{0}, small_models().size()))];
  INFO(model.name);
  ColdRuns cold(*model.model);
  ModelEngine engine(*model.model, {});
  const std::vector<TokenId> turn = random_tokens(1, 4 * kBlockTokens + 7);
  const Answer original = engine.run(sampled_request(turn, 12, 5))->answer;
  for (std::size_t i = 0; i < turn.size(); ++i) {
    CAPTURE(i);
    std::vector<TokenId> edited = turn;
    edited[i] = (edited[i] + 1) % 97;
    const Request request = sampled_request(edited, 3, 5);
    const auto sink = engine.run(request);
    CHECK(sink->answer == cold.answer(request));
    CHECK(sink->finish->usage.cached_tokens <= i);
  }
  CHECK(engine.run(sampled_request(turn, 12, 5))->answer == original);
}

TEST_CASE("Invalidation: a prompt that begins with any part of an earlier one is what it is cold",
          "[engine]") {
  const NamedModel& model = small_models()[GENERATE(range(std::size_t{0}, small_models().size()))];
  INFO(model.name);
  ColdRuns cold(*model.model);
  const std::vector<TokenId> earlier = random_tokens(1, 4 * kBlockTokens + 7);
  for (std::size_t shared = 1; shared <= earlier.size(); ++shared) {
    CAPTURE(shared);
    // A new engine each time: nothing but the earlier prompt is there to be found.
    ModelEngine engine(*model.model, {.num_blocks = 64});
    (void)engine.run(sampled_request(earlier, 1, 5));
    std::vector<TokenId> prompt(earlier.begin(),
                                earlier.begin() + static_cast<std::ptrdiff_t>(shared));
    prompt = joined(prompt, random_tokens(1000 + shared, 1 + shared % 20));
    const Request request = sampled_request(prompt, 3, 5);
    CHECK(engine.run(request)->answer == cold.answer(request));
  }
}

TEST_CASE("Invalidation: a chat that goes on from its own answers is what it is cold", "[engine]") {
  const NamedModel& model = small_models()[GENERATE(range(std::size_t{0}, small_models().size()))];
  INFO(model.name);
  ColdRuns cold(*model.model);
  ModelEngine engine(*model.model, {});
  std::vector<TokenId> chat = random_tokens(3, 11);
  for (std::uint32_t turn = 0; turn < 12; ++turn) {
    CAPTURE(turn);
    const Request request = sampled_request(chat, 9 + turn, turn);
    const auto sink = engine.run(request);
    REQUIRE(sink->answer == cold.answer(request));
    chat = joined(chat, sink->answer.tokens);
    chat = joined(chat, random_tokens(100 + turn, 5 + turn % 7));
  }
}

TEST_CASE(
    "Invalidation: blocks that were reclaimed and filled again are not taken for the old ones",
    "[engine]") {
  const NamedModel& model = small_models()[GENERATE(range(std::size_t{0}, small_models().size()))];
  INFO(model.name);
  ColdRuns cold(*model.model);
  // Room for about three of the prompts; of eight families each comes again and again, at some
  // length.
  const auto stripe =
      model.model->config.kv_geometry(kvcache::KvType::kF16, 16).blocks_per_stripes();
  ModelEngine engine(*model.model, {.num_blocks = 17 * stripe});
  Dice dice(41);
  for (int round = 0; round < 150; ++round) {
    CAPTURE(round);
    const std::uint32_t family = dice.below(8);
    std::vector<TokenId> prompt = random_tokens(family, 96);
    prompt.resize(1 + dice.below(6) * 16 + dice.below(2));
    const Request request = sampled_request(prompt, 1 + family % 5, family);
    CHECK(engine.run(request)->answer == cold.answer(request));
  }
  CHECK(engine.status().prefix_hit_tokens_total > 0);
  CHECK(engine.status().live_blocks == 0);
}

TEST_CASE("Invalidation: what was preempted goes on as if nothing had been", "[engine]") {
  const NamedModel& model = small_models()[GENERATE(range(std::size_t{0}, small_models().size()))];
  INFO(model.name);
  ColdRuns cold(*model.model);
  for (const bool prefix_cache : {true, false}) {
    ModelEngine engine(*model.model,
                       {.num_blocks = blocks_for(model, 93, 20), .prefix_cache = prefix_cache});
    teach_short_answers(engine);
    std::vector<Submitted> submitted;
    for (std::uint32_t i = 0; i < 10; ++i) {
      // Pairs share half a prompt.
      const std::vector<TokenId> prompt =
          joined(random_tokens(i / 2, 20), random_tokens(50 + i, 3 * (i % 5)));
      const Request request = may_end(sampled_request(prompt, 40 + 7 * (i % 4), i));
      submitted.push_back({request, engine.submit(request)});
    }
    engine.run_until_idle();
    check_all(submitted, cold);
    CHECK(engine.status().preemptions_total > 0);
    CHECK(engine.status().live_blocks == 0);
  }
}

TEST_CASE("Invalidation: a fork that outlives its siblings is what it is alone", "[engine]") {
  const NamedModel& model = small_models()[GENERATE(range(std::size_t{0}, small_models().size()))];
  INFO(model.name);
  ColdRuns cold(*model.model);
  const auto stripe =
      model.model->config.kv_geometry(kvcache::KvType::kF16, 16).blocks_per_stripes();
  for (const std::uint32_t stripes : {64U, 9U}) {
    for (const std::uint32_t survivor : {0U, 2U, 3U}) {
      CAPTURE(stripes, survivor);
      ModelEngine engine(*model.model, {.num_blocks = stripes * stripe});
      teach_short_answers(engine);
      std::vector<Submitted> submitted;
      std::vector<Request> choices;
      for (std::uint32_t k = 0; k < 4; ++k) {
        choices.push_back(
            may_end(sampled_request(random_tokens(9, 39), k == survivor ? 60 : 2 + 3 * k, 77)));
        choices.back().sampling.choice_index = k;
        choices.back().fork_group = 1;
      }
      const auto sinks = engine.submit_together(choices);
      for (std::size_t k = 0; k < sinks.size(); ++k) submitted.push_back({choices[k], sinks[k]});
      // Newcomers take what the siblings gave back while the survivor goes on.
      for (std::uint32_t i = 0; i < 5; ++i) {
        const Request request = sampled_request(random_tokens(9, 30 + 5 * i), 8, 300 + i);
        submitted.push_back({request, engine.submit(request)});
      }
      engine.run_until_idle();
      check_all(submitted, cold);
      CHECK(engine.status().live_blocks == 0);
    }
  }
}

// Everything at once, a few hundred requests for each seed: families of prompts that branch, chats
// that go on from what was answered, choices, salts, priorities, and clients that leave.
TEST_CASE("Invalidation: under any mix of requests each gives what it gives cold", "[engine]") {
  const NamedModel& model = small_models()[GENERATE(range(std::size_t{0}, small_models().size()))];
  const std::uint64_t seed = GENERATE(range(std::uint64_t{1}, std::uint64_t{9}));
  INFO(model.name << ", seed " << seed);
  ColdRuns cold(*model.model);
  const auto stripe =
      model.model->config.kv_geometry(kvcache::KvType::kF16, 16).blocks_per_stripes();
  ModelEngineOptions options;
  options.num_blocks = (14 + 6 * static_cast<std::uint32_t>(seed % 4)) * stripe;
  options.max_step_tokens = 8 + 9 * static_cast<std::uint32_t>(seed % 3);
  options.audit_rate = seed % 2 == 0 ? 1.0 : 0.0;
  ModelEngine engine(*model.model, options);
  Dice dice(seed);
  std::vector<Submitted> submitted;
  std::vector<std::vector<TokenId>> chats(6);
  for (std::size_t i = 0; i < chats.size(); ++i) chats[i] = random_tokens(i % 3, 10 + 13 * i);
  std::uint64_t fork_group = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<TokenId>& chat = chats[dice.below(chats.size())];
    switch (dice.below(4)) {
      case 0:  // goes on with something that was answered to it, or to another
        if (!submitted.empty()) {
          const Submitted& one = submitted[dice.below(submitted.size())];
          chat = joined(one.request.prompt_tokens, one.sink->answer.tokens);
        }
        break;
      case 1:  // is edited
        chat[dice.below(chat.size())] = dice.below(97);
        break;
      case 2:  // is cut
        chat.resize(1 + dice.below(chat.size()));
        break;
      default:  // grows
        chat = joined(chat, random_tokens(dice.below(4), 1 + dice.below(20)));
        break;
    }
    if (chat.size() > 90) chat.resize(5 + dice.below(80));
    std::vector<Request> requests(
        1 + (dice.below(4) == 0 ? dice.below(4) : 0),
        may_end(sampled_request(chat, 1 + dice.below(24), dice.below(3))));
    ++fork_group;
    for (std::uint32_t k = 0; k < requests.size(); ++k) {
      requests[k].sampling.choice_index = k;
      requests[k].fork_group = requests.size() > 1 ? fork_group : 0;
      requests[k].priority = static_cast<std::int32_t>(dice.below(3));
      requests[k].cache_salt = dice.below(8) == 0 ? 1 : 0;
    }
    for (Request& request : requests) request.cache_salt = requests[0].cache_salt;
    const auto sinks = engine.submit_together(requests);
    for (std::size_t k = 0; k < sinks.size(); ++k) submitted.push_back({requests[k], sinks[k]});
    if (dice.below(6) == 0) {
      engine.engine().cancel({.id = submitted[dice.below(submitted.size())].sink->id,
                              .cause = CancelCause::kClientGone,
                              .counted_tokens = {}});
    }
    for (std::uint32_t steps = dice.below(9); steps > 0; --steps) engine.engine().step();
  }
  engine.run_until_idle();
  check_all(submitted, cold);
  CHECK(engine.status().live_blocks == 0);
  CHECK(engine.status().prefix_hit_tokens_total > 0);
  CHECK(engine.status().audit_mismatches_total == 0);
}
