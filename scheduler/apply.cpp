// The order of the three stages is what the plan counted on; each takes what the one before gave
// back.
#include "scheduler/apply.h"

#include "core/check.h"
#include "scheduler/service_order.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace kvasir::scheduler {
namespace {

std::string too_long_message(const Sequence& sequence, const kvcache::KvCacheManager& kv) {
  if (!sequence.fits_context()) {
    const char* const and_then = sequence.generates()
                                     ? " tokens and leaves no room for an answer in a context of "
                                     : " tokens and does not fit a context of ";
    return "the prompt has " + std::to_string(sequence.num_prompt_tokens) + and_then +
           std::to_string(sequence.max_total_tokens);
  }
  const kvcache::KvGeometry& geometry = kv.geometry();
  const std::uint64_t needed = geometry.blocks_for(sequence.worst_case_tokens());
  const std::uint64_t max_tokens = sequence.max_total_tokens - sequence.num_prompt_tokens;
  // A prompt alone needs what it needs with one token to generate, which is not computed.
  const std::uint64_t longest = kvcache::longest_prompt_tokens(
      geometry, kv.num_blocks(), std::max<std::uint64_t>(max_tokens, 1));
  return "the KV cache of " + std::to_string(sequence.num_prompt_tokens) + " prompt tokens and " +
         std::to_string(max_tokens) + " generated ones needs " +
         std::to_string(needed * geometry.bytes_per_block()) + " bytes and the budget is " +
         std::to_string(kv.num_blocks() * geometry.bytes_per_block()) +
         " bytes; the longest prompt that fits with as many generated tokens has " +
         std::to_string(longest) + " tokens";
}

Error rejection_error(ErrorCode code, const Sequence& sequence, const kvcache::KvCacheManager& kv) {
  if (code == ErrorCode::kContextLengthExceeded) return {code, too_long_message(sequence, kv), ""};
  return {code, "the deadline of the request passed before it was finished", ""};
}

/// Moves a sequence out of a line and leaves a hole, one without a request, which close_holes()
/// removes: one pass however many leave.
Sequence take_out(std::vector<Sequence>& line, std::vector<Sequence>::iterator place) {
  KVASIR_CHECK(place != line.end());
  return std::move(*place);
}

void close_holes(std::vector<Sequence>& line) {
  std::erase_if(line, [](const Sequence& sequence) { return sequence.request == nullptr; });
}

std::vector<Finish> reject(const StepPlan& plan, SchedulerState& state,
                           kvcache::KvCacheManager& kv) {
  std::vector<Finish> finishes;
  if (plan.reject.empty()) return finishes;
  finishes.reserve(plan.reject.size());
  for (const Rejection& rejection : plan.reject) {
    const auto ran = std::ranges::find(state.running, rejection.sequence, &Sequence::id);
    const bool is_running = ran != state.running.end();
    if (is_running) give_back_blocks(*ran, kv);
    Sequence rejected =
        is_running ? take_out(state.running, ran)
                   : take_out(state.waiting,
                              std::ranges::find(state.waiting, rejection.sequence, &Sequence::id));
    state.learn_from(rejected);
    Error error = rejection_error(rejection.code, rejected, kv);
    if (rejection.code == ErrorCode::kContextLengthExceeded) ++state.totals.rejected;
    finishes.push_back({.sequence = std::move(rejected),
                        .reason = FinishReason::kError,
                        .stop_token = std::nullopt,
                        .error = std::move(error)});
  }
  close_holes(state.running);
  close_holes(state.waiting);
  return finishes;
}

void preempt(const StepPlan& plan, SchedulerState& state, kvcache::KvCacheManager& kv) {
  for (const SequenceId id : plan.preempt) {
    Sequence& victim = running_sequence(state, id);
    give_back_blocks(victim, kv);
    victim.num_computed_tokens = 0;
    ++victim.preemptions;
    ++state.totals.preemptions;
    const auto place = std::ranges::upper_bound(state.waiting, victim, waiting_before);
    state.waiting.insert(place, std::move(victim));
  }
  close_holes(state.running);
}

void count_admission(const Admission& admission, bool is_of_own_group, Sequence& sequence,
                     Totals& totals, TimePoint now) {
  // What a choice of a prompt takes from another is no hit of the cache.
  if (!is_of_own_group) {
    // One with rows to score asks the cache for nothing.
    if (!sequence.has_rows_to_score()) totals.prefix_query_tokens += sequence.num_tokens();
    totals.prefix_hit_tokens += admission.cached_tokens;
  }
  if (sequence.first_admitted_at) return;
  sequence.first_admitted_at = now;
  sequence.cached_tokens = admission.cached_tokens;
  totals.prompt_tokens += sequence.num_prompt_tokens;
}

/// A fork of anything else would show a client what another asked.
void check_same_beginning(const Sequence& fork, const Sequence& source, std::uint32_t num_tokens) {
  KVASIR_CHECK(fork.request->cache_salt == source.request->cache_salt,
               "sequence " << value_of(fork.id) << " is a fork of another salt");
  KVASIR_CHECK(num_tokens < fork.tokens.size() && num_tokens <= source.tokens.size());
  KVASIR_CHECK(
      std::equal(fork.tokens.begin(), fork.tokens.begin() + num_tokens, source.tokens.begin()),
      "sequence " << value_of(fork.id) << " is a fork of another prompt");
}

void admit(const StepPlan& plan, SchedulerState& state, kvcache::KvCacheManager& kv,
           TimePoint now) {
  if (plan.admit.empty()) return;
  for (const Admission& admission : plan.admit) {
    const auto found = std::ranges::find(state.waiting, admission.sequence, &Sequence::id);
    KVASIR_CHECK(found != state.waiting.end(),
                 "sequence " << value_of(admission.sequence) << " is not waiting");
    bool is_of_own_group = false;
    if (admission.fork_of) {
      const Sequence& source = running_sequence(state, *admission.fork_of);
      check_same_beginning(*found, source, admission.cached_tokens);
      is_of_own_group = found->fork_group != 0 && found->fork_group == source.fork_group;
      kv.fork(found->id, *admission.fork_of, admission.cached_tokens);
    } else {
      kv.admit(found->id, found->hashed_tokens(), admission.cached_tokens);
    }
    found->num_computed_tokens = admission.cached_tokens;
    found->furthest_computed = std::max(found->furthest_computed, admission.cached_tokens);
    found->immune = admission.reserves_worst_case;
    count_admission(admission, is_of_own_group, *found, state.totals, now);
    state.running.push_back(std::move(*found));
  }
  close_holes(state.waiting);
  std::ranges::sort(state.running, running_before);
}

/// Whoever was served longest ago has had its turn first: so a crowded step goes on where the last
/// one stopped.
void give_turns(const StepPlan& plan, SchedulerState& state) {
  std::vector<Sequence*> served;
  served.reserve(plan.chunks.size());
  for (const Chunk& chunk : plan.chunks) served.push_back(&running_sequence(state, chunk.sequence));
  std::ranges::sort(served, [](const Sequence* a, const Sequence* b) {
    return a->last_turn != b->last_turn ? a->last_turn < b->last_turn : running_before(*a, *b);
  });
  for (Sequence* sequence : served) sequence->last_turn = ++state.num_turns;
}

void age_waiting(SchedulerState& state) {
  for (Sequence& sequence : state.waiting) ++sequence.waited_steps;
  if (!std::ranges::is_sorted(state.waiting, waiting_before)) {
    std::ranges::sort(state.waiting, waiting_before);
  }
}

}  // namespace

std::vector<Finish> apply(const StepPlan& plan, SchedulerState& state, kvcache::KvCacheManager& kv,
                          TimePoint now) {
  ++state.totals.steps;
  std::vector<Finish> rejected = reject(plan, state, kv);
  preempt(plan, state, kv);
  admit(plan, state, kv, now);
  for (const Chunk& chunk : plan.chunks) kv.grow(chunk.sequence, chunk.num_new_stripes);
  give_turns(plan, state);
  age_waiting(state);
  return rejected;
}

std::vector<BlockCopy> block_copies(const StepPlan& plan, const kvcache::KvCacheManager& kv) {
  std::vector<BlockCopy> copies;
  for (const Admission& admission : plan.admit) {
    for (const BlockCopy& copy : kv.copies(admission.sequence)) copies.push_back(copy);
  }
  return copies;
}

}  // namespace kvasir::scheduler
