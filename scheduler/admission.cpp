// Read Admitter::admit_waiting() top-down. A candidate's start is found first, then its price.
#include "scheduler/admission.h"

#include "scheduler/common_prefix.h"
#include "scheduler/forecast.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvasir::scheduler {
namespace {

/// Who computes which tokens next, for those who wait for the same ones.
struct InFlight {
  const Sequence* sequence = nullptr;
  std::uint32_t computed_tokens = 0;  // in the cache before this step
};

/// With what a newcomer begins.
struct Start {
  std::uint32_t tokens = 0;
  std::uint32_t stripes = 0;          // full ones that it shares
  std::uint32_t live_blocks = 0;      // of these what others hold, in groups without a window
  std::uint32_t copy_blocks = 0;      // free ones that are pinned for the copy
  std::optional<SequenceId> fork_of;  // who has the tokens; absent: the prefix cache
};

/// Somebody who runs and has the most of a sequence's tokens.
struct Source {
  const Sequence* sequence = nullptr;
  std::uint32_t tokens = 0;
};

class Admitter {
 public:
  explicit Admitter(StepDraft& draft) : draft_(draft) {
    for (std::size_t g = 0; g < geometry().groups.size(); ++g) {
      if (geometry().groups[g].window_tokens == 0) {
        lasting_blocks_per_stripe_ += geometry().blocks_per_stripe(g);
      }
    }
  }

  /// Blocks that are taken back in this step are not given to newcomers: which of them will be free
  /// and which will be part of the newcomer's own prefix is only known when they are back.
  void admit_waiting() {
    bool line_is_open = !draft_.took_blocks_back;
    gather_running();
    for (const Sequence& sequence : draft_.state.waiting) {
      if (reject(sequence) || !line_is_open) continue;
      if (draft_.tokens_left == 0 || num_running_ >= draft_.limits.max_sequences) {
        line_is_open = false;
        continue;
      }
      const Source source = source_for(sequence);
      if (waits(sequence, source)) continue;
      line_is_open = admit(sequence, source);
    }
  }

 private:
  /// What the running are still expected to need is kept from newcomers, though not from each
  /// other: so that what is admitted now need not be preempted soon.
  void gather_running() {
    room_ = draft_.spare_blocks;
    for (const Runner& runner : draft_.runners) {
      if (runner.gone) continue;
      ++num_running_;
      in_flight_.push_back({runner.sequence, runner.sequence->num_computed_tokens});
      if (!runner.sequence->immune) room_ -= expected_growth(runner);
    }
  }

  [[nodiscard]] std::int64_t expected_growth(const Runner& runner) const {
    const Sequence& sequence = *runner.sequence;
    const std::uint64_t most = blocks_until(geometry(), sequence, sequence.num_computed_tokens,
                                            forecast_cached_tokens(draft_.state, sequence));
    const std::uint64_t held = draft_.kv.blocks_held(sequence.id) +
                               std::uint64_t{runner.new_stripes} * draft_.blocks_per_stripes;
    return static_cast<std::int64_t>(most - std::min(most, held));
  }

  /// Of one that is past its deadline, or could never fit even alone.
  bool reject(const Sequence& sequence) {
    if (draft_.past_deadline(sequence)) {
      draft_.plan.reject.push_back({sequence.id, ErrorCode::kDeadlineExceeded});
      return true;
    }
    const std::uint64_t needed = geometry().blocks_for(sequence.worst_case_tokens());
    if (!sequence.fits_context() || needed > draft_.kv.num_blocks()) {
      draft_.plan.reject.push_back({sequence.id, ErrorCode::kContextLengthExceeded});
      return true;
    }
    return false;
  }

  /// The first of the running that has the most. The tokens themselves decide, not their hashes.
  [[nodiscard]] Source source_for(const Sequence& sequence) const {
    if (sequence.has_rows_to_score()) return {};  // it would take none of it
    Source best;
    for (const Runner& runner : draft_.runners) {
      const Sequence& other = *runner.sequence;
      if (runner.gone || !may_share(sequence, other)) continue;
      const std::uint32_t said =
          std::min(common_prefix(sequence, other, draft_.block_tokens), other.num_computed_tokens);
      // What cannot be forked at its end cannot be forked before it: windows only move on.
      if (said <= best.tokens || !draft_.kv.can_fork(other.id, said)) continue;
      const std::uint32_t tokens = equal_tokens(sequence, other, said);
      if (tokens > best.tokens && draft_.kv.can_fork(other.id, tokens)) best = {&other, tokens};
    }
    return best;
  }

  /// For somebody not less important who is just computing what it could begin with: the prompt,
  /// where it is a choice of the same one, else at least half a block, for less is sooner computed
  /// than waited for. Should hashes collide, the wait ends when the other has passed the place.
  /// One whose prompt is scored computes what the cache may have long since: then nobody waits for
  /// it, for such ones could follow each other for ever.
  [[nodiscard]] bool waits(const Sequence& sequence, const Source& source) const {
    if (sequence.has_rows_to_score()) return false;
    std::optional<std::uint32_t> cached_tokens;
    return std::ranges::any_of(in_flight_, [&](const InFlight& other) {
      if (other.sequence->priority > sequence.priority) return false;
      if (!may_share(sequence, *other.sequence)) return false;
      const std::uint32_t common = common_prefix(sequence, *other.sequence, draft_.block_tokens);
      std::uint32_t there = std::max(source.tokens, other.computed_tokens);
      if (other.sequence->has_rows_to_score()) {
        if (!cached_tokens) cached_tokens = draft_.kv.match_prefix(sequence.hashed_tokens()).tokens;
        there = std::max(there, *cached_tokens);
      }
      const bool computes_prompt = are_siblings(sequence, *other.sequence) &&
                                   std::min(common, sequence.num_prompt_tokens) > there;
      return computes_prompt || common >= there + std::max(draft_.block_tokens / 2, 1U);
    });
  }

  /// The ways in which it can begin, the most that it need not compute first. What is copied out of
  /// the cache takes room while it is read; so one comes after it that copies nothing from there.
  [[nodiscard]] std::vector<Start> starts_of(const Sequence& sequence, const Source& source) const {
    if (sequence.has_rows_to_score()) return {Start{}};
    const kvcache::PrefixMatch match = draft_.kv.match_prefix(sequence.hashed_tokens());
    std::vector<Start> starts{from_cache(match)};
    if (match.copy_blocks > 0) {
      starts.push_back(from_cache(draft_.kv.match_whole_stripes(sequence.hashed_tokens())));
    }
    if (source.tokens > starts.back().tokens) {
      const std::uint32_t stripes = source.tokens / draft_.block_tokens;
      const Start fork{source.tokens, stripes, stripes * lasting_blocks_per_stripe_, 0,
                       source.sequence->id};
      starts.insert(source.tokens > match.tokens ? starts.begin() : starts.begin() + 1, fork);
    }
    return starts;
  }

  [[nodiscard]] static Start from_cache(const kvcache::PrefixMatch& match) {
    return {match.tokens, match.stripes, match.live_blocks, match.copy_blocks, std::nullopt};
  }

  /// False, and nothing done, when there is no room for it however it begins.
  bool admit(const Sequence& sequence, const Source& source) {
    const bool reserves = draft_.limits.admission == AdmissionPolicy::kReserve ||
                          sequence.preemptions >= draft_.limits.preemptions_before_reserve;
    for (const Start& start : starts_of(sequence, source)) {
      const std::int64_t price = price_of(sequence, start, reserves);
      if (price > room_) continue;
      admit(sequence, start, reserves, price);
      return true;
    }
    return false;
  }

  void admit(const Sequence& sequence, const Start& start, bool reserves, std::int64_t price) {
    room_ -= price;
    draft_.has_immune = draft_.has_immune || reserves;
    ++num_running_;

    const std::uint32_t num_tokens = std::min(
        {sequence.num_tokens() - start.tokens, draft_.tokens_left, geometry().largest_chunk});
    draft_.tokens_left -= num_tokens;
    draft_.plan.admit.push_back({sequence.id, start.tokens, reserves, start.fork_of});
    draft_.write_chunk(sequence, {.sequence = sequence.id,
                                  .first_position = start.tokens,
                                  .num_tokens = num_tokens,
                                  .num_new_stripes = draft_.new_stripes(start.tokens + num_tokens,
                                                                        start.stripes)});
    in_flight_.push_back({&sequence, start.tokens});
  }

  /// Pinning takes reclaimable blocks of the prefix from the free count: they are paid for like new
  /// ones. So is what is shared in windows, where sharing saves nothing that lasts. What a fork
  /// shares is never free: nobody who runs leaves in a step that admits. The first that is never
  /// preempted also pays for what the windows of the others share (see count_spare_blocks()).
  [[nodiscard]] std::int64_t price_of(const Sequence& sequence, const Start& start,
                                      bool reserves) const {
    const std::uint32_t tokens =
        reserves ? sequence.worst_case_tokens() : forecast_cached_tokens(draft_.state, sequence);
    const auto blocks =
        static_cast<std::int64_t>(blocks_until(geometry(), sequence, start.tokens, tokens));
    const std::int64_t shared_by_others =
        reserves && !draft_.has_immune ? draft_.kv.shared_window_blocks() : 0;
    return blocks - start.live_blocks + start.copy_blocks + shared_by_others;
  }

  [[nodiscard]] const kvcache::KvGeometry& geometry() const { return draft_.kv.geometry(); }

  StepDraft& draft_;
  std::uint32_t lasting_blocks_per_stripe_ = 0;  // of groups without a window
  std::vector<InFlight> in_flight_;
  std::size_t num_running_ = 0;
  std::int64_t room_ = 0;  // blocks that newcomers may have
};

}  // namespace

void admit_waiting(StepDraft& draft) { Admitter(draft).admit_waiting(); }

}  // namespace kvasir::scheduler
