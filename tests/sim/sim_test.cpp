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
  std::cout << "sim: " << total << "\n";
  if (only_seed != 0 || steps < 100'000) return;
  for (const TallyRow& row : tally_rows()) {
    CAPTURE(row.name);
    CHECK(total.*row.count * 1'000'000 >= row.least_per_million * steps);
  }
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
