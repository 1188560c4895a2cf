// What happened in simulations, so that a test can see that the hard cases did occur.
#pragma once

#include <cstdint>
#include <ostream>
#include <span>

namespace kvasir::sim {

struct Tally {
  std::uint64_t steps = 0;
  std::uint64_t submitted = 0;
  // how sequences ended
  std::uint64_t finished_stop = 0;
  std::uint64_t finished_length = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t past_deadline = 0;
  std::uint64_t too_long = 0;
  std::uint64_t failed = 0;
  // scarcity
  std::uint64_t preemptions = 0;
  std::uint64_t cheaper_victims = 0;      // preempted though a later one of their priority ran
  std::uint64_t reserved_admissions = 0;  // of sequences that were preempted too often
  std::uint64_t steps_of_reserve = 0;     // under the policy that reserves every worst case
  std::uint64_t crowded_steps = 0;        // with more decodes than step tokens
  std::uint64_t reclaimed_blocks = 0;
  // tokens
  std::uint64_t computed_tokens = 0;
  std::uint64_t recomputed_tokens = 0;
  std::uint64_t prefix_hit_tokens = 0;
  // what is shared
  std::uint64_t forks = 0;              // of choices of one prompt
  std::uint64_t late_forks = 0;         // from a source that has generated more than one token
  std::uint64_t forks_again = 0;        // of sequences that were preempted
  std::uint64_t forks_of_others = 0;    // of any that begin alike
  std::uint64_t copied_blocks = 0;      // by forks, and out of the cache
  std::uint64_t partial_hits = 0;       // in the prefix cache
  std::uint64_t hits_without_copy = 0;  // for want of room
  std::uint64_t cancelled_sharers = 0;  // of a fork group, while others held their blocks
  // windows
  std::uint64_t steps_with_windows = 0;
  std::uint64_t window_returned_blocks = 0;
  std::uint64_t window_hits = 0;           // prefixes of which a window had left a part
  std::uint64_t lost_forks = 0;            // whose source's windows had moved on
  std::uint64_t reserves_over_shares = 0;  // steps with an immune sequence and windows that share
  // prompt logprobs
  std::uint64_t scored_prompts = 0;   // to their end
  std::uint64_t scored_in_parts = 0;  // those of them that were preempted
  std::uint64_t prompts_alone = 0;    // finished without a token to generate
  // audits
  std::uint64_t audits = 0;            // to their end, and all was equal
  std::uint64_t audits_cut_short = 0;  // closed on the way
  std::uint64_t audits_refused = 0;    // of what is not wholly cached any more
  std::uint64_t planted_found = 0;     // stale slots; every one is
  // in all
  std::uint64_t longest_stay_steps = 0;  // of one sequence, from submission to finish
  std::uint64_t plans_hash = 0;          // of all decisions in order

  Tally& operator+=(const Tally& other);
};

/// A count, its name, and how often it must occur in a million steps for a simulation to count.
struct TallyRow {
  const char* name;
  std::uint64_t Tally::*count;
  std::uint64_t least_per_million;
};
[[nodiscard]] std::span<const TallyRow> tally_rows();

std::ostream& operator<<(std::ostream& out, const Tally& tally);

}  // namespace kvasir::sim
