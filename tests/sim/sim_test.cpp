// Many simulations from consecutive seeds. KVASIR_SIM_STEPS sets how many steps in all,
// KVASIR_SIM_SEED runs one seed only; a failure prints the command that repeats it.
#include "tests/sim/simulation.h"
#include "tests/support/catch.h"

#include <cstdlib>
#include <iostream>
#include <string>

namespace kvasir::sim {
namespace {

constexpr std::uint64_t kLoadSteps = 1500;  // of one simulation, before it runs dry

std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// Sanitized builds are an order of magnitude slower.
constexpr std::uint64_t default_steps() {
#ifdef NDEBUG
  return 2'000'000;
#else
  return 300'000;
#endif
}

void print(const Tally& tally) {
  std::cout << "sim: " << tally.steps << " steps, " << tally.submitted
            << " sequences: " << tally.finished_stop << " stop, " << tally.finished_length
            << " length, " << tally.cancelled << " cancelled, " << tally.past_deadline
            << " past deadline, " << tally.too_long << " too long, " << tally.failed << " failed; "
            << tally.preemptions << " preemptions, " << tally.reserved_admissions
            << " ended with their worst case reserved; " << tally.computed_tokens
            << " tokens computed, " << tally.recomputed_tokens << " again, "
            << tally.prefix_hit_tokens << " found; " << tally.forks << " forks, "
            << tally.late_forks << " steps after their source's first token, " << tally.forks_again
            << " after a preemption, " << tally.copied_blocks << " blocks copied, "
            << tally.cancelled_sharers << " sharers cancelled; " << tally.forks_of_others
            << " forks of others; " << tally.steps_of_reserve << " steps with all reserved; "
            << tally.crowded_steps << " crowded steps; longest stay " << tally.longest_stay_steps
            << " steps\n";
}

}  // namespace

TEST_CASE("Simulation: under any load the books balance and every answer is the one given alone",
          "[sim]") {
  const std::uint64_t only_seed = number_from_environment("KVASIR_SIM_SEED", 0);
  const std::uint64_t steps = number_from_environment("KVASIR_SIM_STEPS", default_steps());
  Tally total;
  for (std::uint64_t seed = only_seed != 0 ? only_seed : 1; total.steps < steps; ++seed) {
    INFO("repeat with: KVASIR_SIM_SEED=" << seed << " kvasir_tests_sim '[sim]'");
    total += Simulation(seed).run(kLoadSteps);
    if (only_seed != 0) break;
  }
  print(total);
  if (only_seed != 0 || steps < 100'000) return;
  // The hard cases did occur.
  CHECK(total.finished_stop > steps / 1000);
  CHECK(total.finished_length > steps / 1000);
  CHECK(total.cancelled > steps / 1000);
  CHECK(total.past_deadline > steps / 10'000);
  CHECK(total.too_long > steps / 10'000);
  CHECK(total.failed > steps / 10'000);
  CHECK(total.preemptions > steps / 1000);
  CHECK(total.reserved_admissions > steps / 10'000);
  CHECK(total.crowded_steps > steps / 10'000);
  CHECK(total.scored_prompts > steps / 1000);
  CHECK(total.scored_in_parts > steps / 10'000);
  CHECK(total.prompts_alone > steps / 10'000);
  CHECK(total.prefix_hit_tokens > steps / 10);
  CHECK(total.forks > steps / 1000);
  CHECK(total.forks_of_others > steps / 1000);
  CHECK(total.steps_of_reserve > steps / 10);
  CHECK(total.late_forks > steps / 10'000);
  CHECK(total.forks_again > steps / 10'000);
  CHECK(total.copied_blocks > steps / 1000);
  CHECK(total.cancelled_sharers > steps / 10'000);
}

TEST_CASE("Simulation: the same seed makes the same decisions again", "[sim]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    const Tally first = Simulation(seed).run(kLoadSteps);
    const Tally again = Simulation(seed).run(kLoadSteps);
    CHECK(first.plans_hash == again.plans_hash);
    CHECK(first.steps == again.steps);
  }
}

}  // namespace kvasir::sim
