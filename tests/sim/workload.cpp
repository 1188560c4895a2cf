// Sizes are drawn so that every kind of scarcity occurs: of blocks, of step tokens, of sequences,
// of time.
#include "tests/sim/workload.h"

#include "tests/sim/toy_model.h"

#include <algorithm>
#include <array>
#include <optional>

namespace kvasir::sim {
namespace {

template <std::size_t kSize>
std::uint32_t pick(Random& random, const std::array<std::uint32_t, kSize>& choices) {
  return choices[random.between(0, kSize - 1)];
}

/// Sixteen names for all blocks in the world: collisions are the rule.
kvcache::BlockHash weak_hash(const kvcache::BlockHash& parent, std::span<const TokenId> tokens) {
  return {0, kvcache::hash_block(parent, tokens).low % 16};
}

kvcache::KvCacheOptions make_cache(Random& random) {
  kvcache::KvCacheOptions cache;
  cache.geometry.groups = {{.num_layers = 1, .num_kv_heads = 1, .head_dim = 8}};
  cache.geometry.block_tokens = pick<4>(random, {1, 4, 8, 16});
  cache.num_blocks = pick<6>(random, {3, 6, 10, 20, 40, 150}) + random.between(0, 5);
  cache.prefix_cache_enabled = !random.chance(250);
  if (random.chance(150)) cache.hash = weak_hash;
  return cache;
}

scheduler::StepLimits make_limits(Random& random) {
  scheduler::StepLimits limits;
  if (random.chance(300)) limits.admission = scheduler::AdmissionPolicy::kReserve;
  limits.max_step_tokens = make_step_tokens(random);
  limits.max_sequences = pick<5>(random, {1, 2, 4, 8, 24});
  limits.context_tokens = random.chance(700) ? 0 : random.between(60, 250);
  limits.preemptions_before_reserve = random.between(0, 4);
  return limits;
}

}  // namespace

Scenario make_scenario(std::uint64_t seed) {
  Random random(seed);
  Scenario scenario;
  scenario.cache = make_cache(random);
  scenario.limits = make_limits(random);
  const std::uint32_t slots = scenario.cache.num_blocks * scenario.cache.geometry.block_tokens;
  scenario.max_live = pick<4>(random, {2, 6, 15, 40});
  scenario.longest_prompt = std::min(random.between(1, 120), slots);
  scenario.most_new_tokens = random.between(1, pick<2>(random, {30, 200}));
  scenario.num_priorities = pick<3>(random, {1, 1, 4});
  scenario.num_salts = pick<3>(random, {1, 2, 3});
  scenario.arrival_chance = pick<3>(random, {100, 400, 1000});
  scenario.largest_burst = pick<3>(random, {1, 3, 12});
  scenario.group_chance = pick<3>(random, {0, 200, 500});
  scenario.fork_chance = pick<3>(random, {0, 800, 1000});
  scenario.most_choices = pick<3>(random, {2, 5, 12});
  scenario.shared_chance = pick<3>(random, {0, 400, 900});
  scenario.follow_up_chance = pick<3>(random, {0, 200, 600});
  scenario.scoring_chance = pick<3>(random, {0, 100, 500});
  scenario.deadline_chance = pick<3>(random, {0, 0, 150});
  scenario.cancel_chance = pick<3>(random, {0, 10, 100});
  scenario.failure_chance = pick<4>(random, {0, 0, 2, 20});
  scenario.limit_change_chance = pick<3>(random, {0, 0, 10});
  scenario.expects_nothing = random.chance(600);
  scenario.ends_with_cancel_of_all = random.chance(200);
  return scenario;
}

std::uint32_t make_step_tokens(Random& random) {
  return pick<7>(random, {1, 2, 5, 16, 32, 100, 512});
}

RequestMaker::RequestMaker(const Scenario& scenario, Random& random)
    : scenario_(scenario), random_(random) {
  for (int i = 0; i < 3; ++i) {
    append_tokens(openings_.emplace_back(), random_.between(1, scenario_.longest_prompt));
  }
}

std::vector<std::shared_ptr<const Request>> RequestMaker::make(TimePoint now) {
  Request request;
  request.prompt_tokens = make_prompt();
  request.stop.max_tokens = make_max_tokens(request.prompt_tokens.size());
  request.stop.stop_token_ids = {3, 50};
  if (random_.chance(300)) request.stop.stop_token_ids.clear();
  request.sampling.seed = random_.between(0, 3);
  request.priority = static_cast<std::int32_t>(random_.between(0, scenario_.num_priorities - 1));
  request.cache_salt = random_.between(0, scenario_.num_salts - 1);
  if (random_.chance(scenario_.deadline_chance)) {
    request.deadline = now + std::chrono::milliseconds(random_.between(0, 400));
  }
  std::vector<std::shared_ptr<const Request>> choices;
  const std::uint32_t n =
      random_.chance(scenario_.group_chance) ? random_.between(2, scenario_.most_choices) : 1;
  if (n > 1 && random_.chance(scenario_.fork_chance)) request.fork_group = ++num_fork_groups_;
  const bool scores = random_.chance(scenario_.scoring_chance);
  if (scores && n == 1 && random_.chance(200)) request.stop.max_tokens = 0;
  for (std::uint32_t k = 0; k < n; ++k) {
    request.sampling.choice_index = k;
    request.prompt_logprobs = scores && k == 0 ? std::optional(0U) : std::nullopt;
    choices.push_back(std::make_shared<const Request>(request));
  }
  return choices;
}

void RequestMaker::remember(std::vector<TokenId> conversation) {
  constexpr std::size_t kRemembered = 16;
  if (conversations_.size() < kRemembered) {
    conversations_.push_back(std::move(conversation));
  } else {
    conversations_[random_.between(0, kRemembered - 1)] = std::move(conversation);
  }
}

/// Most requests fit the whole budget, if only just; a few can never fit.
std::uint32_t RequestMaker::make_max_tokens(std::size_t prompt_tokens) {
  const std::uint32_t wanted = random_.between(1, scenario_.most_new_tokens);
  const std::uint64_t slots =
      std::uint64_t{scenario_.cache.num_blocks} * scenario_.cache.geometry.block_tokens;
  if (random_.chance(30) || prompt_tokens > slots) return wanted;
  return std::min(wanted, static_cast<std::uint32_t>(slots + 1 - prompt_tokens));
}

std::vector<TokenId> RequestMaker::make_prompt() {
  std::vector<TokenId> prompt;
  if (!conversations_.empty() && random_.chance(scenario_.follow_up_chance)) {
    const auto last = static_cast<std::uint32_t>(conversations_.size() - 1);
    prompt = conversations_[random_.between(0, last)];
  } else if (random_.chance(scenario_.shared_chance)) {
    prompt = openings_[random_.between(0, 2)];
    prompt.resize(random_.between(1, static_cast<std::uint32_t>(prompt.size())));
  }
  append_tokens(prompt, random_.between(prompt.empty() ? 1 : 0, scenario_.longest_prompt / 2 + 1));
  if (prompt.size() > scenario_.longest_prompt) prompt.resize(scenario_.longest_prompt);
  return prompt;
}

void RequestMaker::append_tokens(std::vector<TokenId>& tokens, std::uint32_t count) {
  // Half of the prompts are of two tokens only, so that equal blocks turn up under different
  // parents.
  const TokenId most = random_.chance(500) ? 1 : kVocabSize - 1;
  for (std::uint32_t i = 0; i < count; ++i) tokens.push_back(random_.between(0, most));
}

}  // namespace kvasir::sim
