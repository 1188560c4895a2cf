// plan() as a budget: tokens and spare blocks only ever get subtracted, and what a preemption gives
// back is counted at its least. Read Planner::make() top-down; the rules are numbered in the
// header.
#include "scheduler/plan.h"

#include "core/check.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvasir::scheduler {
namespace {

/// One running sequence while the step is being planned.
struct Runner {
  const Sequence* sequence = nullptr;
  std::uint32_t held_blocks = 0;
  std::uint32_t chunk_tokens = 0;  // 0: not served in this step
  std::uint32_t new_blocks = 0;
  bool gone = false;  // preempted or rejected
};

/// Who computes which tokens next, for those who wait for the same ones.
struct InFlight {
  const Sequence* sequence = nullptr;
  std::uint32_t computed_tokens = 0;  // in the cache before this step
};

/// With what a newcomer begins.
struct Start {
  std::uint32_t tokens = 0;
  std::uint32_t blocks = 0;              // full ones that it shares
  std::uint32_t reclaimable_blocks = 0;  // those of them that count as free now
  std::optional<SequenceId> fork_of;     // who shares them; absent: the prefix cache
};

class Planner {
 public:
  Planner(const SchedulerState& state, const kvcache::KvView& kv, const StepLimits& limits,
          TimePoint now)
      : state_(state),
        kv_(kv),
        limits_(limits),
        now_(now),
        block_tokens_(kv.geometry().block_tokens),
        tokens_left_(limits.max_step_tokens) {}

  StepPlan make() {
    KVASIR_CHECK(limits_.max_step_tokens >= 1 && limits_.max_sequences >= 1);
    gather_running();
    reject_running();
    count_spare_blocks();
    serve_decodes();
    serve_prefills();
    write_running_chunks();
    admit_waiting();
    return std::move(plan_);
  }

 private:
  void gather_running() {
    runners_.reserve(state_.running.size());
    for (const Sequence& sequence : state_.running) {
      runners_.push_back({.sequence = &sequence, .held_blocks = kv_.num_stripes(sequence.id)});
    }
  }

  void reject_running() {
    for (Runner& runner : runners_) {
      if (!past_deadline(*runner.sequence)) continue;
      plan_.reject.push_back({runner.sequence->id, ErrorCode::kDeadlineExceeded});
      take_back(runner);
    }
  }

  /// What is free and not kept for an immune sequence. Taken-back blocks are in spare_blocks_
  /// already.
  void count_spare_blocks() {
    spare_blocks_ += kv_.num_free_blocks();
    for (const Runner& runner : runners_) {
      if (runner.gone || !runner.sequence->immune) continue;
      spare_blocks_ -= blocks_for(runner.sequence->worst_case_tokens()) - runner.held_blocks;
    }
    KVASIR_CHECK(spare_blocks_ >= 0, spare_blocks_ << " blocks: a reserve was given away");
  }

  /// One token for each decode. Prefills get what is left, so when nothing would be left the first
  /// of them takes its turn among the decodes.
  void serve_decodes() {
    std::vector<Runner*> turns;
    turns.reserve(runners_.size());
    bool has_prefill = false;
    for (Runner& runner : runners_) {
      if (runner.gone) continue;
      if (runner.sequence->is_decode()) turns.push_back(&runner);
      if (!runner.sequence->is_decode() && !has_prefill) {
        has_prefill = true;
        turns.push_back(&runner);
      }
    }
    const bool crowded = turns.size() > limits_.max_step_tokens;
    if (crowded) {
      std::ranges::stable_sort(turns, {}, [](const Runner* r) { return r->sequence->last_turn; });
    }
    for (Runner* runner : turns) {
      if (crowded || runner->sequence->is_decode()) serve(*runner, 1);
    }
  }

  void serve_prefills() {
    for (Runner& runner : runners_) {
      if (runner.chunk_tokens == 0 && !runner.sequence->is_decode()) {
        serve(runner, runner.sequence->remaining_tokens());
      }
    }
  }

  /// Plans a chunk of at most `most_tokens`, making room from behind when there is no slot for even
  /// one token.
  void serve(Runner& runner, std::uint32_t most_tokens) {
    const Sequence& sequence = *runner.sequence;
    if (runner.gone || tokens_left_ == 0) return;
    while (slots_for(runner) == 0) {
      if (!preempt_behind(runner))
        return;  // it stands still, and with no spare block nobody is admitted
    }
    // Only now, for the preempted may have given tokens back.
    const std::uint32_t wanted = std::min({sequence.remaining_tokens(), most_tokens, tokens_left_});
    runner.chunk_tokens =
        static_cast<std::uint32_t>(std::min<std::int64_t>(wanted, slots_for(runner)));
    runner.new_blocks =
        blocks_for(sequence.num_computed_tokens + runner.chunk_tokens) - runner.held_blocks;
    tokens_left_ -= runner.chunk_tokens;
    if (!sequence.immune) spare_blocks_ -= runner.new_blocks;
  }

  /// Tokens that the runner's own blocks and the spare ones have room for; an immune one has its
  /// reserve.
  [[nodiscard]] std::int64_t slots_for(const Runner& runner) const {
    const Sequence& sequence = *runner.sequence;
    if (sequence.immune) return sequence.remaining_tokens();
    return (spare_blocks_ + runner.held_blocks) * block_tokens_ - sequence.num_computed_tokens;
  }

  /// Preempts the least important sequence behind `runner`. False when there is none.
  bool preempt_behind(const Runner& runner) {
    for (std::size_t i = runners_.size(); i > 0 && &runners_[i - 1] != &runner; --i) {
      Runner& victim = runners_[i - 1];
      if (victim.gone || victim.sequence->immune) continue;
      plan_.preempt.push_back(victim.sequence->id);
      tokens_left_ += victim.chunk_tokens;
      spare_blocks_ += victim.new_blocks;
      take_back(victim);
      return true;
    }
    return false;
  }

  /// Counts only blocks that nobody else references: two that share a block free it together, which
  /// the next step's count will show.
  void take_back(Runner& runner) {
    runner.gone = true;
    runner.chunk_tokens = 0;
    runner.new_blocks = 0;
    spare_blocks_ += kv_.blocks_freed_by_evicting(runner.sequence->id);
    took_blocks_back_ = true;
  }

  void write_running_chunks() {
    for (const bool decodes : {true, false}) {
      for (const Runner& runner : runners_) {
        if (runner.chunk_tokens == 0 || runner.sequence->is_decode() != decodes) continue;
        write_chunk(*runner.sequence, {.sequence = runner.sequence->id,
                                       .first_position = runner.sequence->num_computed_tokens,
                                       .num_tokens = runner.chunk_tokens,
                                       .num_new_blocks = runner.new_blocks});
      }
    }
  }

  /// Only the last known token's row is sampled. A chunk that ends before it wants no logits, but
  /// for rows of a prompt that are still to be scored.
  void write_chunk(const Sequence& sequence, Chunk chunk) {
    const std::uint32_t end = chunk.first_position + chunk.num_tokens;
    const bool samples = sequence.generates() && end == sequence.num_tokens();
    chunk.first_logits_row = samples ? chunk.num_tokens - 1 : chunk.num_tokens;
    const std::uint32_t first_scored = std::max(sequence.num_scored_rows, chunk.first_position);
    if (first_scored < std::min(end, sequence.rows_to_score())) {
      chunk.first_logits_row = first_scored - chunk.first_position;
    }
    plan_.chunks.push_back(chunk);
  }

  /// Blocks that are taken back in this step are not given to newcomers: which of them will be free
  /// and which will be part of the newcomer's own prefix is only known when they are back.
  /// A running prefill that wants more has used up the step's tokens or the spare blocks by now, so
  /// that no newcomer takes what it needs.
  void admit_waiting() {
    bool line_is_open = !took_blocks_back_;
    std::size_t num_running =
        static_cast<std::size_t>(std::ranges::count(runners_, false, &Runner::gone));
    std::int64_t room = spare_blocks_;
    gather_in_flight();
    for (const Sequence& sequence : state_.waiting) {
      if (reject_waiting(sequence) || !line_is_open) continue;
      if (tokens_left_ == 0 || num_running >= limits_.max_sequences) {
        line_is_open = false;
      } else if (const Sequence* source = fork_source(sequence);
                 source != nullptr || !waits(sequence)) {
        line_is_open = admit(sequence, start_of(sequence, source), room);
        num_running += line_is_open ? 1 : 0;
      }
    }
  }

  bool reject_waiting(const Sequence& sequence) {
    if (past_deadline(sequence)) {
      plan_.reject.push_back({sequence.id, ErrorCode::kDeadlineExceeded});
      return true;
    }
    const bool no_token_fits_context =
        sequence.max_total_tokens < sequence.num_prompt_tokens + (sequence.generates() ? 1U : 0U);
    const std::uint64_t slots = std::uint64_t{kv_.num_blocks()} * block_tokens_;
    if (no_token_fits_context || sequence.worst_case_tokens() > slots) {
      plan_.reject.push_back({sequence.id, ErrorCode::kContextLengthExceeded});
      return true;
    }
    return false;
  }

  /// What all of a fork group have in common, but for the last known token, which must be computed.
  [[nodiscard]] static std::uint32_t forkable_tokens(const Sequence& sequence) {
    return std::min(sequence.num_prompt_tokens, sequence.num_tokens() - 1);
  }

  [[nodiscard]] static bool are_siblings(const Sequence& a, const Sequence& b) {
    return a.fork_group != 0 && a.fork_group == b.fork_group;
  }

  /// The first of the running that has computed what the sequence can take from a sibling.
  [[nodiscard]] const Sequence* fork_source(const Sequence& sequence) const {
    const std::uint32_t wanted = forkable_tokens(sequence);
    if (wanted == 0 || sequence.has_rows_to_score()) return nullptr;
    const auto found = std::ranges::find_if(runners_, [&](const Runner& runner) {
      return !runner.gone && are_siblings(sequence, *runner.sequence) &&
             runner.sequence->num_computed_tokens >= wanted;
    });
    return found == runners_.end() ? nullptr : found->sequence;
  }

  /// The most that it need not compute.
  [[nodiscard]] Start start_of(const Sequence& sequence, const Sequence* source) const {
    if (sequence.has_rows_to_score()) return {};
    const kvcache::PrefixMatch match = kv_.match_prefix(sequence.hashed_tokens());
    const std::uint32_t wanted = forkable_tokens(sequence);
    if (source != nullptr && wanted > match.tokens) {
      return {wanted, wanted / block_tokens_, 0, source->id};
    }
    return {match.tokens, match.stripes, match.stripes - match.live_blocks, std::nullopt};
  }

  /// False, and nothing done, when there is no room for it.
  bool admit(const Sequence& sequence, const Start& start, std::int64_t& room) {
    const bool reserves = sequence.preemptions >= limits_.preemptions_before_reserve;
    const std::uint32_t needed =
        blocks_for(reserves ? sequence.worst_case_tokens() : sequence.num_tokens());
    // Pinning takes the reclaimable blocks of the prefix from the free count: they cost like new
    // ones. What a fork shares is never free: nobody who runs leaves in a step that admits.
    const std::int64_t cost = std::int64_t{needed} - start.blocks + start.reclaimable_blocks;
    if (cost > room) return false;
    room -= cost;

    const std::uint32_t num_tokens = std::min(sequence.num_tokens() - start.tokens, tokens_left_);
    tokens_left_ -= num_tokens;
    plan_.admit.push_back({sequence.id, start.tokens, reserves, start.fork_of});
    write_chunk(sequence, {.sequence = sequence.id,
                           .first_position = start.tokens,
                           .num_tokens = num_tokens,
                           .num_new_blocks = blocks_for(start.tokens + num_tokens) - start.blocks});
    in_flight_.push_back({&sequence, start.tokens});
    return true;
  }

  void gather_in_flight() {
    for (const Runner& runner : runners_) {
      if (!runner.gone)
        in_flight_.push_back({runner.sequence, runner.sequence->num_computed_tokens});
    }
  }

  /// For somebody not less important who is just computing what it could begin with.
  [[nodiscard]] bool waits(const Sequence& sequence) const {
    if (sequence.has_rows_to_score()) return false;  // it would take none of it
    const std::uint32_t wanted = forkable_tokens(sequence);
    return std::ranges::any_of(in_flight_, [&](const InFlight& other) {
      if (other.sequence->priority > sequence.priority) return false;
      const bool computes_prompt =
          are_siblings(sequence, *other.sequence) && other.computed_tokens < wanted;
      return computes_prompt || computes_block_of(sequence, other);
    });
  }

  /// Hashes are chained: equal ones at a block stand for equal prefixes up to it. Should they
  /// collide, the wait ends when the other has passed the block; no tokens are ever taken on the
  /// word of a hash.
  [[nodiscard]] bool computes_block_of(const Sequence& sequence, const InFlight& other) const {
    const std::span<const kvcache::BlockHash> hashes = sequence.hashes.blocks();
    const std::span<const kvcache::BlockHash> others = other.sequence->hashes.blocks();
    const std::size_t usable =
        std::min<std::size_t>(hashes.size(), (sequence.num_tokens() - 1) / block_tokens_);
    const std::uint32_t next_block = other.computed_tokens / block_tokens_;
    return next_block < usable && next_block < others.size() &&
           others[next_block] == hashes[next_block];
  }

  [[nodiscard]] bool past_deadline(const Sequence& sequence) const {
    return sequence.deadline.has_value() && *sequence.deadline <= now_;
  }

  [[nodiscard]] std::uint32_t blocks_for(std::uint32_t tokens) const {
    return static_cast<std::uint32_t>(kv_.geometry().blocks_for(tokens));
  }

  const SchedulerState& state_;
  const kvcache::KvView& kv_;
  const StepLimits& limits_;
  const TimePoint now_;
  const std::uint32_t block_tokens_;

  StepPlan plan_;
  std::vector<Runner> runners_;  // of state_.running, in service order
  std::vector<InFlight> in_flight_;
  std::int64_t spare_blocks_ = 0;
  std::uint32_t tokens_left_;
  bool took_blocks_back_ = false;
};

}  // namespace

StepPlan plan(const SchedulerState& state, const kvcache::KvView& kv, const StepLimits& limits,
              TimePoint now) {
  return Planner(state, kv, limits, now).make();
}

}  // namespace kvasir::scheduler
