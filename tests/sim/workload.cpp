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

/// Layers without a window, and beside them none, one or five with one, or layers with windows
/// alone.
std::vector<kvcache::KvLayerGroup> make_groups(Random& random, std::uint32_t block_tokens) {
  const kvcache::KvLayerGroup full{1, 1, 8, 0};
  const std::uint32_t window =
      pick<6>(random, {1, 2, block_tokens, block_tokens + 1, 3 * block_tokens, 40});
  switch (random.between(0, 6)) {
    case 0:
      return {full, {5, 1, 8, window}};
    case 1:
      return {{1, 1, 8, window}, full};
    case 2:
      return {{1, 1, 8, window}};
    case 3:
      return {{1, 1, 8, window}, full, {2, 1, 8, window * 2}};
    default:
      return {full};
  }
}

/// What fits the whole budget at most, as far as the lengths here go.
std::uint32_t capacity_of(const kvcache::KvCacheOptions& cache) {
  constexpr std::uint64_t kMost = 2000;
  return static_cast<std::uint32_t>(
      std::min(kvcache::longest_prompt_tokens(cache.geometry, cache.num_blocks, 1), kMost));
}

kvcache::KvCacheOptions make_cache(Random& random) {
  kvcache::KvCacheOptions cache;
  cache.geometry.block_tokens = pick<4>(random, {1, 4, 8, 16});
  cache.geometry.groups = make_groups(random, cache.geometry.block_tokens);
  cache.geometry.largest_chunk = pick<5>(random, {1, 3, 16, 64, 512});
  cache.num_blocks =
      pick<6>(random, {3, 6, 10, 20, 40, 150}) * cache.geometry.blocks_per_stripes() +
      random.between(0, 5);
  cache.prefix_cache_enabled = !random.chance(250);
  cache.copies_partial_stripes = !random.chance(200);
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
  scenario.capacity_tokens = capacity_of(scenario.cache);
  scenario.max_live = pick<4>(random, {2, 6, 15, 40});
  scenario.longest_prompt = std::min(random.between(1, 120), scenario.capacity_tokens);
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
  const std::uint64_t capacity = scenario_.capacity_tokens;
  if (random_.chance(30) || prompt_tokens > capacity) return wanted;
  return std::min(wanted, static_cast<std::uint32_t>(capacity + 1 - prompt_tokens));
}

std::vector<TokenId> RequestMaker::make_prompt() {
  std::vector<TokenId> prompt;
  if (!conversations_.empty() && random_.chance(scenario_.follow_up_chance)) {
    const auto last = static_cast<std::uint32_t>(conversations_.size() - 1);
    prompt = conversations_[random_.between(0, last)];
    if (random_.chance(300)) {  // an earlier turn is edited
      prompt.resize(random_.between(1, static_cast<std::uint32_t>(prompt.size())));
    }
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
