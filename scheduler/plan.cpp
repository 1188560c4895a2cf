// The running first, then the waiting (admission.cpp). Read Planner::make() top-down; the rules are
// numbered in the header.
#include "scheduler/plan.h"

#include "core/check.h"
#include "scheduler/admission.h"
#include "scheduler/forecast.h"
#include "scheduler/step_draft.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvasir::scheduler {
namespace {

class Planner {
 public:
  Planner(const SchedulerState& state, const kvcache::KvView& kv, const StepLimits& limits,
          TimePoint now)
      : draft_(state, kv, limits, now), largest_chunk_(kv.geometry().largest_chunk) {}

  StepPlan make() {
    KVASIR_CHECK(draft_.limits.max_step_tokens >= 1 && draft_.limits.max_sequences >= 1);
    gather_running();
    reject_running();
    count_spare_blocks();
    serve_decodes();
    serve_prefills();
    write_running_chunks();
    admit_waiting(draft_);
    return std::move(draft_.plan);
  }

 private:
  void gather_running() {
    draft_.runners.reserve(draft_.state.running.size());
    for (const Sequence& sequence : draft_.state.running) {
      draft_.runners.push_back(
          {.sequence = &sequence, .held_stripes = draft_.kv.num_stripes(sequence.id)});
    }
  }

  void reject_running() {
    for (Runner& runner : draft_.runners) {
      if (!draft_.past_deadline(*runner.sequence)) continue;
      draft_.plan.reject.push_back({runner.sequence->id, ErrorCode::kDeadlineExceeded});
      take_back(runner);
    }
  }

  /// What is free and not kept for an immune sequence. Taken-back blocks are among the spare ones
  /// already. A window that moves past a block which somebody else holds gives nothing back, though
  /// its reserve grows by one: what is shared in windows is kept too.
  void count_spare_blocks() {
    draft_.spare_blocks += draft_.kv.num_free_blocks();
    for (const Runner& runner : draft_.runners) {
      if (runner.gone || !runner.sequence->immune) continue;
      draft_.has_immune = true;
      draft_.spare_blocks -= static_cast<std::int64_t>(reserve_of(*runner.sequence, draft_.kv));
    }
    if (draft_.has_immune) draft_.spare_blocks -= draft_.kv.shared_window_blocks();
    KVASIR_CHECK(draft_.spare_blocks >= 0,
                 draft_.spare_blocks << " blocks: a reserve was given away");
  }

  /// One token for each decode. Prefills get what is left, so when nothing would be left the first
  /// of them takes its turn among the decodes.
  void serve_decodes() {
    std::vector<Runner*> turns;
    turns.reserve(draft_.runners.size());
    bool has_prefill = false;
    for (Runner& runner : draft_.runners) {
      if (runner.gone) continue;
      if (runner.sequence->is_decode()) turns.push_back(&runner);
      if (!runner.sequence->is_decode() && !has_prefill) {
        has_prefill = true;
        turns.push_back(&runner);
      }
    }
    const bool crowded = turns.size() > draft_.limits.max_step_tokens;
    if (crowded) {
      std::ranges::stable_sort(turns, {}, [](const Runner* r) { return r->sequence->last_turn; });
    }
    for (Runner* runner : turns) {
      if (crowded || runner->sequence->is_decode()) serve(*runner, 1);
    }
  }

  void serve_prefills() {
    for (Runner& runner : draft_.runners) {
      if (runner.chunk_tokens == 0 && !runner.sequence->is_decode()) {
        serve(runner, runner.sequence->remaining_tokens());
      }
    }
  }

  /// Plans a chunk of at most `most_tokens`, making room from behind when there is no slot for even
  /// one token.
  void serve(Runner& runner, std::uint32_t most_tokens) {
    const Sequence& sequence = *runner.sequence;
    if (runner.gone || draft_.tokens_left == 0) return;
    while (slots_for(runner) == 0) {
      if (!preempt_behind(runner))
        return;  // it stands still, and with no spare block nobody is admitted
    }
    // Only now, for the preempted may have given tokens back.
    const std::uint32_t wanted =
        std::min({sequence.remaining_tokens(), most_tokens, draft_.tokens_left, largest_chunk_});
    runner.chunk_tokens =
        static_cast<std::uint32_t>(std::min<std::int64_t>(wanted, slots_for(runner)));
    runner.new_stripes =
        draft_.new_stripes(sequence.num_computed_tokens + runner.chunk_tokens, runner.held_stripes);
    draft_.tokens_left -= runner.chunk_tokens;
    if (!sequence.immune) draft_.spare_blocks -= blocks_of(runner.new_stripes);
  }

  /// Tokens that the runner's own stripes and the spare blocks have room for; an immune one has its
  /// reserve.
  [[nodiscard]] std::int64_t slots_for(const Runner& runner) const {
    const Sequence& sequence = *runner.sequence;
    if (sequence.immune) return sequence.remaining_tokens();
    const std::int64_t stripes =
        draft_.spare_blocks / draft_.blocks_per_stripes + runner.held_stripes;
    return stripes * draft_.block_tokens - sequence.num_computed_tokens;
  }

  /// What can be preempted for others, as a price.
  struct Offer {
    Runner* runner = nullptr;
    std::int64_t tokens = 0;  // to compute again
    std::int64_t blocks = 0;  // that come free, planned growth included
  };

  /// Tokens whose stripes others hold too are counted as kept for it.
  [[nodiscard]] Offer offer_of(Runner& victim) const {
    const Sequence& sequence = *victim.sequence;
    const std::int64_t freed = draft_.kv.blocks_freed_by_evicting(sequence.id);
    const std::int64_t shared_stripes =
        (draft_.kv.blocks_held(sequence.id) - freed) / draft_.blocks_per_stripes;
    const std::int64_t lost = sequence.num_computed_tokens - shared_stripes * draft_.block_tokens;
    return {&victim, std::max<std::int64_t>(lost, 0), freed + blocks_of(victim.new_stripes)};
  }

  /// Whether `a`, which comes later in service order, gives way rather than `b`.
  [[nodiscard]] static bool is_cheaper(const Offer& a, const Offer& b) {
    if ((a.blocks > 0) != (b.blocks > 0)) return a.blocks > 0;
    if (a.runner->sequence->priority != b.runner->sequence->priority) return true;
    if (a.blocks == 0) return true;
    return a.tokens * b.blocks <= b.tokens * a.blocks;
  }

  /// Preempts the one behind `runner` that costs least. False when there is none whose blocks can
  /// be used in this step.
  bool preempt_behind(const Runner& runner) {
    Offer best;
    for (Runner* victim = &draft_.runners.back(); victim != &runner; --victim) {
      if (victim->gone || victim->sequence->immune) continue;
      const Offer offer = offer_of(*victim);
      if (best.runner == nullptr || !is_cheaper(best, offer)) best = offer;
    }
    const bool for_nothing = best.blocks == 0;
    if (best.runner == nullptr || (for_nothing && took_for_nothing_)) return false;
    took_for_nothing_ = took_for_nothing_ || for_nothing;
    draft_.plan.preempt.push_back(best.runner->sequence->id);
    draft_.tokens_left += best.runner->chunk_tokens;
    draft_.spare_blocks += blocks_of(best.runner->new_stripes);
    take_back(*best.runner);
    return !for_nothing;
  }

  /// Counts only blocks that nobody else references: two that share a block free it together, which
  /// the next step's count will show.
  void take_back(Runner& runner) {
    runner.gone = true;
    runner.chunk_tokens = 0;
    runner.new_stripes = 0;
    draft_.spare_blocks += draft_.kv.blocks_freed_by_evicting(runner.sequence->id);
    draft_.took_blocks_back = true;
  }

  [[nodiscard]] std::int64_t blocks_of(std::uint32_t stripes) const {
    return std::int64_t{stripes} * draft_.blocks_per_stripes;
  }

  void write_running_chunks() {
    for (const bool decodes : {true, false}) {
      for (const Runner& runner : draft_.runners) {
        if (runner.chunk_tokens == 0 || runner.sequence->is_decode() != decodes) continue;
        draft_.write_chunk(*runner.sequence,
                           {.sequence = runner.sequence->id,
                            .first_position = runner.sequence->num_computed_tokens,
                            .num_tokens = runner.chunk_tokens,
                            .num_new_stripes = runner.new_stripes});
      }
    }
  }

  StepDraft draft_;
  const std::uint32_t largest_chunk_;
  bool took_for_nothing_ = false;  // preempted one that frees blocks only together with others
};

}  // namespace

StepPlan plan(const SchedulerState& state, const kvcache::KvView& kv, const StepLimits& limits,
              TimePoint now) {
  return Planner(state, kv, limits, now).make();
}

}  // namespace kvasir::scheduler
