// Read step() first: it is the engine's loop with a check between any two of its verbs.
#include "tests/sim/simulation.h"

#include "core/check.h"
#include "scheduler/plan_text.h"
#include "scheduler/service_order.h"
#include "tests/sim/toy_model.h"

#include <algorithm>
#include <utility>

namespace kvasir::sim {
namespace {

/// The O(blocks) check runs every so many steps, and always when something ends the simulation.
constexpr std::uint64_t kIntegritySteps = 16;
constexpr std::uint64_t kPuritySteps = 64;

}  // namespace

Simulation::Simulation(std::uint64_t seed)
    : scenario_(make_scenario(seed)),
      random_(mix64(seed) + 1),
      requests_(scenario_, random_),
      kv_(scenario_.cache),
      executor_(kv_),
      auditor_(kv_, executor_, random_) {}

Tally Simulation::run(std::uint64_t load_steps) {
  while (tally_.steps < load_steps) {
    arrive();
    cancel_some();
    if (state_.empty()) {
      clock_.advance(std::chrono::milliseconds(1));
      auditor_.audit(tally_);
    } else {
      step();
    }
  }
  if (scenario_.ends_with_cancel_of_all) cancel_all();
  while (!state_.empty()) step();

  KVASIR_CHECK(live_.empty(), live_.size() << " sequences never finished");
  kv_.check_integrity();
  KVASIR_CHECK(kv_.num_free_blocks() == kv_.num_blocks(), kv_.num_live_blocks()
                                                              << " never came home");
  KVASIR_CHECK(kv_.num_sequences() == 0);
  const std::uint64_t ended = tally_.finished_stop + tally_.finished_length + tally_.cancelled +
                              tally_.past_deadline + tally_.too_long + tally_.failed;
  KVASIR_CHECK(ended == tally_.submitted, ended << " ended of " << tally_.submitted);
  tally_.preemptions = state_.totals.preemptions;
  tally_.reclaimed_blocks = kv_.totals().reclaimed;
  tally_.window_returned_blocks = kv_.totals().window_returned;
  tally_.prefix_hit_tokens = state_.totals.prefix_hit_tokens;
  tally_.computed_tokens = state_.totals.computed_tokens;
  tally_.recomputed_tokens = state_.totals.recomputed_tokens;
  return tally_;
}

void Simulation::arrive() {
  if (!random_.chance(scenario_.arrival_chance)) return;
  const std::uint32_t burst = random_.between(1, scenario_.largest_burst);
  for (std::uint32_t i = 0; i < burst && live_.size() < scenario_.max_live; ++i) {
    for (std::shared_ptr<const Request>& request : requests_.make(clock_.now())) {
      const SequenceId id{++last_id_};
      Live& live = live_[id];
      live.submitted_at_step = live.progressed_at_step = tally_.steps;
      scheduler::submit(state_, kv_, scenario_.limits, {id, std::move(request)}, clock_.now());
      ++tally_.submitted;
    }
  }
}

void Simulation::cancel_some() {
  if (last_id_ == 0 || !random_.chance(scenario_.cancel_chance)) return;
  // Among the latest ids, so that waiting, running, preempted and finished ones are all hit.
  const std::uint64_t span = std::min<std::uint64_t>(last_id_, scenario_.max_live * 2ULL);
  const SequenceId id{last_id_ - random_.next() % span};
  const std::uint32_t held = kv_.blocks_freed_by_evicting(id);
  const std::uint32_t free_before = kv_.num_free_blocks();
  const bool shares = kv_.blocks_held(id) > held;
  const auto removed = scheduler::remove(state_, kv_, id);
  KVASIR_CHECK(removed.has_value() == live_.contains(id), "sequence " << value_of(id));
  KVASIR_CHECK(kv_.num_free_blocks() == free_before + held, "a cancelled sequence keeps blocks");
  KVASIR_CHECK(kv_.blocks_held(id) == 0);
  if (!removed) return;
  ++tally_.cancelled;
  tally_.cancelled_sharers += shares && removed->fork_group != 0 ? 1 : 0;
  count_end(*removed);
  check_receipts();
}

void Simulation::cancel_all() {
  while (!state_.empty()) {
    const SequenceId id = state_.running.empty() ? state_.waiting[0].id : state_.running[0].id;
    const auto removed = scheduler::remove(state_, kv_, id);
    KVASIR_CHECK(removed.has_value());
    ++tally_.cancelled;
    count_end(*removed);
  }
}

void Simulation::step() {
  ++tally_.steps;
  const bool reserves = scenario_.limits.admission == scheduler::AdmissionPolicy::kReserve;
  tally_.steps_of_reserve += reserves ? 1 : 0;
  tally_.steps_with_windows += kv_.geometry().has_windows() ? 1 : 0;
  const bool has_immune = std::ranges::any_of(state_.running, &scheduler::Sequence::immune);
  tally_.reserves_over_shares += has_immune && kv_.shared_window_blocks() > 0 ? 1 : 0;
  if (random_.chance(scenario_.limit_change_chance)) {
    scenario_.limits.max_step_tokens = make_step_tokens(random_);
  }
  if (scenario_.expects_nothing) state_.lengths.mean_256ths = 0;
  const StepPlan plan = scheduler::plan(state_, kv_, scenario_.limits, clock_.now());
  check_plan(plan);
  count(plan);
  for (const scheduler::Finish& rejected : scheduler::apply(plan, state_, kv_, clock_.now())) {
    finish(rejected);
  }
  check_counts(plan);
  clock_.advance(std::chrono::milliseconds(random_.between(1, 20)));
  if (!plan.chunks.empty() && random_.chance(scenario_.failure_chance)) {
    executor_.execute_and_fail(plan);
    const Error error{ErrorCode::kInternal, "scripted failure", ""};
    for (const scheduler::Finish& failed : scheduler::fail_step(plan, error, state_, kv_))
      finish(failed);
  } else {
    StepResult result = executor_.execute(plan, state_);
    deliver(scheduler::absorb(plan, std::move(result), state_, kv_, clock_.now()));
  }
  check_progress(plan);
  check_receipts();
  if (tally_.steps % kIntegritySteps != 0) return;
  kv_.check_integrity();
  executor_.poison_unused();
}

void Simulation::check_plan(const StepPlan& plan) {
  std::uint64_t num_tokens = 0;
  for (const Chunk& chunk : plan.chunks) {
    KVASIR_CHECK(chunk.num_tokens >= 1);
    num_tokens += chunk.num_tokens;
  }
  KVASIR_CHECK(num_tokens <= scenario_.limits.max_step_tokens, num_tokens << " tokens in a step");
  KVASIR_CHECK(plan.preempt.empty() || plan.admit.empty(), "a step that preempts admits nothing");
  const bool reserves = scenario_.limits.admission == scheduler::AdmissionPolicy::kReserve;
  KVASIR_CHECK(plan.preempt.empty() || !reserves, "preempted though all was reserved");
  KVASIR_CHECK(std::ranges::all_of(
      plan.admit, [&](const Admission& a) { return a.reserves_worst_case || !reserves; }));
  for (const SequenceId id : plan.preempt) {
    KVASIR_CHECK(id != state_.running[0].id, "the first of the running is preempted");
    KVASIR_CHECK(!state_.find(id)->immune, "an immune sequence is preempted");
  }
  check_admissions(plan);
  KVASIR_CHECK(std::ranges::is_sorted(state_.running, scheduler::running_before));
  KVASIR_CHECK(std::ranges::is_sorted(state_.waiting, scheduler::waiting_before));
  if (tally_.steps % kPuritySteps != 0) return;
  const scheduler::SchedulerState copy = state_;
  KVASIR_CHECK(scheduler::plan(copy, kv_, scenario_.limits, clock_.now()) == plan,
               "plan is not pure");
}

/// Nobody computes again what a running one of its group has, but to score it, and nobody is a fork
/// of another group.
void Simulation::check_admissions(const StepPlan& plan) {
  for (const Admission& admission : plan.admit) {
    const scheduler::Sequence& newcomer = *state_.find(admission.sequence);
    const std::uint32_t common = std::min(newcomer.num_prompt_tokens, newcomer.num_tokens() - 1);
    const auto shows_prompt = [&](const scheduler::Sequence& other) {
      return newcomer.fork_group != 0 && other.fork_group == newcomer.fork_group &&
             other.num_computed_tokens >= common;
    };
    const auto still_has_it = [&](const scheduler::Sequence& other) {
      return shows_prompt(other) && kv_.can_fork(other.id, common);
    };
    if (admission.cached_tokens < common && !newcomer.has_rows_to_score()) {
      KVASIR_CHECK(std::ranges::none_of(state_.running, still_has_it),
                   "sequence " << value_of(newcomer.id) << " computes what a sibling has");
      tally_.lost_forks += std::ranges::any_of(state_.running, shows_prompt) ? 1 : 0;
    }
    if (!admission.fork_of) continue;
    const auto source =
        std::ranges::find(state_.running, *admission.fork_of, &scheduler::Sequence::id);
    KVASIR_CHECK(source != state_.running.end(), "a fork of one that does not run");
    KVASIR_CHECK(source->num_computed_tokens >= admission.cached_tokens, "a fork of nothing");
    KVASIR_CHECK(source->request->cache_salt == newcomer.request->cache_salt, "another's salt");
    KVASIR_CHECK(newcomer.fork_group != 0 && newcomer.fork_group == source->fork_group
                     ? true
                     : scenario_.cache.prefix_cache_enabled,
                 "strangers share though the cache is off");
  }
}

void Simulation::count(const StepPlan& plan) {
  const auto num_decodes = std::ranges::count_if(state_.running, &scheduler::Sequence::is_decode);
  tally_.crowded_steps += num_decodes > scenario_.limits.max_step_tokens ? 1 : 0;
  const auto mix = [this](std::uint64_t word) {
    tally_.plans_hash = mix64(tally_.plans_hash ^ word);
  };
  for (const SequenceId id : plan.preempt) mix(value_of(id));
  for (const Rejection& rejection : plan.reject) mix(value_of(rejection.sequence));
  for (const Admission& admission : plan.admit) {
    mix(value_of(admission.sequence) << 32 | admission.cached_tokens);
    if (admission.fork_of) mix(value_of(*admission.fork_of));
  }
  for (const Chunk& chunk : plan.chunks) mix(value_of(chunk.sequence) << 32 | chunk.num_tokens);
  count_starts(plan);
  count_victims(plan);
}

void Simulation::count_starts(const StepPlan& plan) {
  const kvcache::KvGeometry& geometry = kv_.geometry();
  for (const Admission& admission : plan.admit) {
    const scheduler::Sequence& newcomer = *state_.find(admission.sequence);
    const bool is_copied = admission.cached_tokens % geometry.block_tokens > 0;
    tally_.copied_blocks += is_copied ? geometry.blocks_per_stripes() : 0;
    if (admission.fork_of) {
      const scheduler::Sequence& source = *state_.find(*admission.fork_of);
      const bool is_choice = newcomer.fork_group != 0 && newcomer.fork_group == source.fork_group;
      ++(is_choice ? tally_.forks : tally_.forks_of_others);
      tally_.late_forks += is_choice && source.num_generated() > 1 ? 1 : 0;
      tally_.forks_again += is_choice && newcomer.preemptions > 0 ? 1 : 0;
      continue;
    }
    if (newcomer.has_rows_to_score()) continue;
    const kvcache::PrefixMatch match = kv_.match_prefix(newcomer.hashed_tokens());
    tally_.partial_hits += is_copied ? 1 : 0;
    tally_.hits_without_copy += admission.cached_tokens < match.tokens ? 1 : 0;
    for (std::size_t g = 0; g < geometry.groups.size(); ++g) {
      const bool moved = geometry.first_visible_stripe(g, admission.cached_tokens) > 0;
      tally_.window_hits += moved ? 1 : 0;
    }
    if (admission.cached_tokens > 0) auditor_.remember(newcomer, admission.cached_tokens);
  }
}

void Simulation::count_victims(const StepPlan& plan) {
  for (const SequenceId id : plan.preempt) {
    const scheduler::Sequence& victim = *state_.find(id);
    const auto stays = [&](const scheduler::Sequence& other) {
      return other.priority == victim.priority && other.arrival_order > victim.arrival_order &&
             !other.immune && std::ranges::find(plan.preempt, other.id) == plan.preempt.end();
    };
    tally_.cheaper_victims += std::ranges::any_of(state_.running, stays) ? 1 : 0;
  }
}

void Simulation::check_counts(const StepPlan& plan) const {
  KVASIR_CHECK(state_.running.size() <= scenario_.limits.max_sequences, state_.running.size()
                                                                            << " run");
  KVASIR_CHECK(kv_.num_sequences() == state_.running.size(), "only the running hold blocks");
  KVASIR_CHECK(kv_.num_live_blocks() <= kv_.num_blocks());
  KVASIR_CHECK(state_.empty() || !plan.empty(), "a step does nothing though sequences live\n"
                                                    << scheduler::to_text(state_));
}

/// A sequence may wait while older and more important ones are served, but not for ever. The bound
/// is what all that can be ahead of it could need, computed one token at a time, plus the time
/// after which age alone puts it first.
void Simulation::check_progress(const StepPlan& plan) {
  for (const Chunk& chunk : plan.chunks) {
    const auto found = live_.find(chunk.sequence);
    if (found != live_.end()) found->second.progressed_at_step = tally_.steps;
  }
  const std::uint64_t longest = scenario_.longest_prompt + scenario_.most_new_tokens;
  const std::uint64_t ahead = (scenario_.max_live + 5) * longest;
  const std::uint64_t bound =
      34 * scheduler::kAgingSteps + ahead * (1 + scenario_.limits.preemptions_before_reserve);
  if (tally_.steps % kPuritySteps != 0) return;
  for (const auto& [id, live] : live_) {
    KVASIR_CHECK(tally_.steps - live.progressed_at_step <= bound,
                 "sequence " << value_of(id) << " starves\n"
                             << scheduler::to_text(state_));
  }
}

void Simulation::deliver(const scheduler::StepEvents& events) {
  for (const PromptLogprobs& scores : events.prompts) {
    const auto found = live_.find(scores.sequence);
    KVASIR_CHECK(found != live_.end() && found->second.num_events == 0, "scores after a token");
    std::vector<float>& list = found->second.prompt_logprobs;
    KVASIR_CHECK(scores.first_token == list.size() + 1, "scores twice, or not in order");
    for (const PromptToken& token : scores.tokens) list.push_back(token.logprob);
  }
  for (const SampledToken& token : events.tokens) {
    const auto found = live_.find(token.sequence);
    KVASIR_CHECK(found != live_.end(), "a token after the end of " << value_of(token.sequence));
    ++found->second.num_events;
  }
  for (const scheduler::Finish& ended : events.finishes) finish(ended);
}

void Simulation::finish(const scheduler::Finish& finish) {
  const scheduler::Sequence& sequence = finish.sequence;
  KVASIR_CHECK(state_.find(sequence.id) == nullptr);
  KVASIR_CHECK(kv_.blocks_held(sequence.id) == 0);
  const auto found = live_.find(sequence.id);
  KVASIR_CHECK(found != live_.end(), "sequence " << value_of(sequence.id) << " finishes twice");
  KVASIR_CHECK(found->second.num_events == sequence.num_generated(), "tokens are lost");
  const bool natural =
      finish.reason == FinishReason::kStop || finish.reason == FinishReason::kLength;
  if (natural && sequence.request->prompt_logprobs) check_scores(sequence, found->second);
  switch (finish.reason) {
    case FinishReason::kStop:
      ++tally_.finished_stop;
      check_answer(finish);
      break;
    case FinishReason::kLength:
      ++tally_.finished_length;
      check_answer(finish);
      break;
    case FinishReason::kCancelled:
    case FinishReason::kError:
      KVASIR_CHECK(finish.error.has_value());
      tally_.past_deadline += finish.error->code == ErrorCode::kDeadlineExceeded ? 1 : 0;
      tally_.too_long += finish.error->code == ErrorCode::kContextLengthExceeded ? 1 : 0;
      tally_.failed += finish.error->code == ErrorCode::kInternal ? 1 : 0;
      break;
  }
  tally_.reserved_admissions += sequence.immune && sequence.preemptions > 0 ? 1 : 0;
  count_end(sequence);
}

void Simulation::check_answer(const scheduler::Finish& finish) const {
  const scheduler::Sequence& sequence = finish.sequence;
  const std::vector<TokenId> alone = generate_alone(*sequence.request, sequence.max_total_tokens);
  const auto generated = std::span(sequence.tokens).subspan(sequence.num_prompt_tokens);
  KVASIR_CHECK(std::ranges::equal(generated, alone), "another answer than alone");

  const scheduler::Usage usage = scheduler::usage_of(sequence, clock_.now());
  KVASIR_CHECK(usage.completion_tokens == alone.size());
  KVASIR_CHECK(usage.cached_tokens < usage.prompt_tokens);
  if (usage.preemptions > 0) return;
  check_costs(sequence);
  // The last generated token is never computed, and nothing is computed twice.
  const std::uint32_t computed = sequence.num_tokens() - (sequence.generates() ? 1 : 0);
  KVASIR_CHECK(usage.cached_tokens + usage.computed_tokens == computed);
  KVASIR_CHECK(usage.recomputed_tokens == 0);
}

void Simulation::check_scores(const scheduler::Sequence& sequence, const Live& live) {
  KVASIR_CHECK(sequence.cached_tokens == 0, "cached positions have no logits");
  KVASIR_CHECK(live.prompt_logprobs.size() + 1 == sequence.num_prompt_tokens, "scores are lost");
  std::uint64_t stored = empty_prefix(sequence.request->cache_salt);
  for (std::size_t i = 0; i < live.prompt_logprobs.size(); ++i) {
    stored = extend_prefix(stored, sequence.tokens[i]);
    KVASIR_CHECK(live.prompt_logprobs[i] == prompt_logprob(stored, sequence.tokens[i + 1]),
                 "another score than alone");
  }
  ++tally_.scored_prompts;
  tally_.scored_in_parts += sequence.preemptions > 0 ? 1 : 0;
  tally_.prompts_alone += sequence.generates() ? 0 : 1;
}

/// What they took and have not given back is what is live: of those that run, of those that wait
/// after a preemption, and of those that ended, whose blocks others may hold.
void Simulation::check_receipts() const {
  std::int64_t held = held_by_ended_;
  const auto add = [&held](const kvcache::KvReceipt& receipt) {
    held += static_cast<std::int64_t>(receipt.taken_blocks) -
            static_cast<std::int64_t>(receipt.returned_blocks);
  };
  for (const scheduler::Sequence& sequence : state_.running) {
    add(sequence.kv);
    add(kv_.receipt(sequence.id));
  }
  for (const scheduler::Sequence& sequence : state_.waiting) add(sequence.kv);
  KVASIR_CHECK(held == kv_.num_live_blocks(),
               "receipts of " << held << " blocks, live are " << kv_.num_live_blocks());
}

/// Of one that ran once: each of its queries counted by hand.
void Simulation::check_costs(const scheduler::Sequence& sequence) const {
  const kvcache::KvGeometry& geometry = kv_.geometry();
  const scheduler::Usage usage = scheduler::usage_of(sequence, clock_.now());
  std::uint64_t scores = 0;
  for (std::uint32_t p = usage.cached_tokens; p < usage.cached_tokens + usage.computed_tokens;
       ++p) {
    for (const kvcache::KvLayerGroup& group : geometry.groups) {
      const std::uint32_t seen =
          group.window_tokens == 0 ? p + 1 : std::min(p + 1, group.window_tokens);
      scores += std::uint64_t{seen} * group.num_layers;
    }
  }
  KVASIR_CHECK(usage.attention_scores == scores,
               usage.attention_scores << " scores, counted " << scores);
  KVASIR_CHECK(usage.kv.shared_blocks <= usage.kv.peak_blocks);
  KVASIR_CHECK(usage.kv.peak_blocks >= geometry.blocks_per_stripes());
  // One stripe more while a partly shared one is copied.
  KVASIR_CHECK(usage.kv.peak_blocks <= geometry.blocks_for(sequence.worst_case_tokens()) +
                                           geometry.blocks_per_stripes(),
               "a peak of " << usage.kv.peak_blocks << " blocks is more than the worst case");
}

void Simulation::count_end(const scheduler::Sequence& sequence) {
  held_by_ended_ += static_cast<std::int64_t>(sequence.kv.taken_blocks) -
                    static_cast<std::int64_t>(sequence.kv.returned_blocks);
  const auto found = live_.find(sequence.id);
  KVASIR_CHECK(found != live_.end());
  const std::uint64_t stay = tally_.steps - found->second.submitted_at_step;
  tally_.longest_stay_steps = std::max(tally_.longest_stay_steps, stay);
  live_.erase(found);
  executor_.forget(sequence.id);
}

}  // namespace kvasir::sim
