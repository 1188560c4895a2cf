// What happens to the engine in one simulation: its sizes, and who asks for what when. All of it
// follows from a seed.
#pragma once

#include "core/request.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/step_limits.h"
#include "tests/sim/random.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvasir::sim {

/// Probabilities are per mille.
struct Scenario {
  kvcache::KvCacheOptions cache;
  scheduler::StepLimits limits;
  std::uint32_t max_live = 0;         // submitted and not finished
  std::uint32_t capacity_tokens = 0;  // of one sequence alone in the whole budget
  std::uint32_t longest_prompt = 0;
  std::uint32_t most_new_tokens = 0;
  std::uint32_t num_priorities = 1;
  std::uint32_t num_salts = 1;
  std::uint32_t arrival_chance = 0;  // per step
  std::uint32_t largest_burst = 1;
  std::uint32_t group_chance = 0;      // n > 1 choices of one prompt
  std::uint32_t fork_chance = 0;       // of such a group: that it is said to be one
  std::uint32_t most_choices = 5;      // of a group
  std::uint32_t shared_chance = 0;     // a prompt that starts like others
  std::uint32_t follow_up_chance = 0;  // a prompt that goes on from an earlier answer
  std::uint32_t scoring_chance = 0;    // prompt logprobs, sometimes without a token to generate
  std::uint32_t deadline_chance = 0;
  std::uint32_t cancel_chance = 0;   // per step
  std::uint32_t failure_chance = 0;  // of an execution
  std::uint32_t limit_change_chance =
      0;  // per step: other max_step_tokens, so that decodes may outnumber them
  bool expects_nothing = false;  // the forecast is too low at all times: preemption is the rule
  bool ends_with_cancel_of_all = false;
};

[[nodiscard]] Scenario make_scenario(std::uint64_t seed);
[[nodiscard]] std::uint32_t make_step_tokens(Random& random);

/// Makes prompts that overlap in the ways that real ones do.
class RequestMaker {
 public:
  RequestMaker(const Scenario& scenario, Random& random);
  /// One request, or n for the choices of one prompt.
  [[nodiscard]] std::vector<std::shared_ptr<const Request>> make(TimePoint now);
  /// A finished conversation that a later prompt may continue.
  void remember(std::vector<TokenId> conversation);

 private:
  [[nodiscard]] std::vector<TokenId> make_prompt();
  [[nodiscard]] std::uint32_t make_max_tokens(std::size_t prompt_tokens);
  void append_tokens(std::vector<TokenId>& tokens, std::uint32_t count);

  const Scenario& scenario_;
  Random& random_;
  std::vector<std::vector<TokenId>> openings_;
  std::vector<std::vector<TokenId>> conversations_;
  std::uint64_t num_fork_groups_ = 0;
};

}  // namespace kvasir::sim
