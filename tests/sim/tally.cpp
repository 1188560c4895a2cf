// One table of counts: it adds, prints and says what must occur.
#include "tests/sim/tally.h"

#include "core/rng.h"

#include <algorithm>
#include <array>

namespace kvasir::sim {
namespace {

constexpr std::array kRows = {
    TallyRow{"steps", &Tally::steps, 1},
    TallyRow{"sequences", &Tally::submitted, 1000},
    TallyRow{"stop", &Tally::finished_stop, 1000},
    TallyRow{"length", &Tally::finished_length, 1000},
    TallyRow{"cancelled", &Tally::cancelled, 1000},
    TallyRow{"past deadline", &Tally::past_deadline, 100},
    TallyRow{"too long", &Tally::too_long, 100},
    TallyRow{"failed", &Tally::failed, 100},
    TallyRow{"preemptions", &Tally::preemptions, 1000},
    TallyRow{"cheaper victims", &Tally::cheaper_victims, 10},
    TallyRow{"reserved after preemptions", &Tally::reserved_admissions, 100},
    TallyRow{"steps under reserve", &Tally::steps_of_reserve, 100'000},
    TallyRow{"crowded steps", &Tally::crowded_steps, 100},
    TallyRow{"blocks reclaimed", &Tally::reclaimed_blocks, 1000},
    TallyRow{"tokens computed", &Tally::computed_tokens, 100'000},
    TallyRow{"again", &Tally::recomputed_tokens, 10'000},
    TallyRow{"found", &Tally::prefix_hit_tokens, 100'000},
    TallyRow{"forks", &Tally::forks, 1000},
    TallyRow{"late forks", &Tally::late_forks, 100},
    TallyRow{"forks after preemption", &Tally::forks_again, 25},
    TallyRow{"forks of others", &Tally::forks_of_others, 1000},
    TallyRow{"blocks copied", &Tally::copied_blocks, 1000},
    TallyRow{"hits within a stripe", &Tally::partial_hits, 1000},
    TallyRow{"hits without the copy", &Tally::hits_without_copy, 10},
    TallyRow{"sharers cancelled", &Tally::cancelled_sharers, 50},
    TallyRow{"steps with windows", &Tally::steps_with_windows, 100'000},
    TallyRow{"blocks back from windows", &Tally::window_returned_blocks, 10'000},
    TallyRow{"hits behind windows", &Tally::window_hits, 100},
    TallyRow{"forks that came too late", &Tally::lost_forks, 10},
    TallyRow{"reserves over shared windows", &Tally::reserves_over_shares, 100},
    TallyRow{"prompts scored", &Tally::scored_prompts, 1000},
    TallyRow{"in parts", &Tally::scored_in_parts, 100},
    TallyRow{"prompts alone", &Tally::prompts_alone, 100},
    TallyRow{"audits", &Tally::audits, 100},
    TallyRow{"audits cut short", &Tally::audits_cut_short, 10},
    TallyRow{"audits of what had gone", &Tally::audits_refused, 10},
    TallyRow{"stale slots found", &Tally::planted_found, 10},
};

}  // namespace

std::span<const TallyRow> tally_rows() { return kRows; }

Tally& Tally::operator+=(const Tally& other) {
  for (const TallyRow& row : kRows) this->*row.count += other.*row.count;
  longest_stay_steps = std::max(longest_stay_steps, other.longest_stay_steps);
  plans_hash = mix64(plans_hash ^ other.plans_hash);
  return *this;
}

std::ostream& operator<<(std::ostream& out, const Tally& tally) {
  for (const TallyRow& row : kRows) out << tally.*row.count << ' ' << row.name << ", ";
  return out << "longest stay " << tally.longest_stay_steps << " steps";
}

}  // namespace kvasir::sim
