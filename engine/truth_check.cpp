// By induction: a stripe is computed over the cached ones before it, which were compared already,
// so that the audit of a whole prefix is its cold recomputation in a few blocks of memory.
#include "engine/truth_check.h"

#include "core/check.h"
#include "core/rng.h"

#include <algorithm>
#include <utility>

namespace kvasir::engine {
namespace {

/// Sequences begin at 1: no sequence has it.
constexpr SequenceId kAuditId{0};

/// What such a one takes was computed for it just now, not long ago for another request.
bool is_choice_of_same_prompt(const Admission& admission, const scheduler::Sequence& sequence,
                              const scheduler::SchedulerState& state) {
  if (!admission.fork_of || sequence.fork_group == 0) return false;
  const scheduler::Sequence* source = state.find(*admission.fork_of);
  return source != nullptr && source->fork_group == sequence.fork_group;
}

bool is_equal(const kvcache::AuditStep& step, const runtime::Executor& executor) {
  return std::ranges::all_of(step.pairs, [&](const kvcache::AuditStep::Pair& pair) {
    return executor.same_slots(pair.cached, pair.fresh, step.num_tokens);
  });
}

}  // namespace

TruthCheck::TruthCheck(TruthCheckOptions options) : options_(std::move(options)) {}

void TruthCheck::sample(const StepPlan& plan, const scheduler::SchedulerState& state) {
  if (options_.rate <= 0.0) return;
  for (const Admission& admission : plan.admit) {
    if (admission.cached_tokens == 0) continue;
    const scheduler::Sequence* sequence = state.find(admission.sequence);
    KVASIR_CHECK(sequence != nullptr, "sequence " << value_of(admission.sequence) << " is unknown");
    if (is_choice_of_same_prompt(admission, *sequence, state) || !is_sampled()) continue;
    Entry entry;
    entry.tokens.assign(sequence->tokens.begin(),
                        sequence->tokens.begin() + admission.cached_tokens);
    entry.hashes = sequence->hashes;
    note(std::move(entry));
  }
}

/// The share of a number that mixes the count of hits: no clock and no chance, so that a run can be
/// repeated.
bool TruthCheck::is_sampled() {
  constexpr double kUnit = 1.0 / static_cast<double>(1ULL << 53U);
  return static_cast<double>(mix64(++num_hits_) >> 11U) * kUnit < options_.rate;
}

void TruthCheck::note(Entry entry) {
  const bool known = std::ranges::any_of(pending_, [&](const Entry& other) {
    return other.hashes.cache_salt() == entry.hashes.cache_salt() && other.tokens == entry.tokens;
  });
  if (known) return;
  // Nothing is open while sequences are admitted, so that the first may go like any other.
  KVASIR_CHECK(!open_);
  if (pending_.size() == kMaxPending) {
    pending_.pop_front();
    ++counts_.given_up;
  }
  pending_.push_back(std::move(entry));
}

void TruthCheck::step(kvcache::KvCacheManager& kv, runtime::Executor& executor) {
  const kvcache::KvTotals before = kv.totals();
  go_on(kv, executor);
  book(before, kv.totals());
}

void TruthCheck::go_on(kvcache::KvCacheManager& kv, runtime::Executor& executor) {
  if (!open_ && !open(kv)) return;
  const std::optional<kvcache::AuditStep> step = kv.next_audit_step(kAuditId);
  if (!step) {
    // Before its end there was no block free for it, and nothing is known of the rest.
    const bool whole = compared_tokens_ == pending_.front().tokens.size() && !leaves_some_out_;
    end(kv, whole ? End::kCompared : End::kGivenUp);
    return;
  }
  if (const Result<void> computed = compute(*step, kv, executor); !computed) {
    report("a cached prefix could not be computed again: " + computed.error().message);
    end(kv, End::kGivenUp);
    return;
  }
  compare(*step, kv, executor);
}

/// False, and the entry is gone, when it is not cached any more or was begun too often.
bool TruthCheck::open(kvcache::KvCacheManager& kv) {
  Entry& entry = pending_.front();
  const auto num_tokens = static_cast<std::uint32_t>(entry.tokens.size());
  open_ = entry.starts++ < kMaxAuditStarts &&
          kv.open_audit(kAuditId, entry.hashed_tokens(), num_tokens);
  compared_tokens_ = 0;
  leaves_some_out_ = false;
  if (!open_) {
    pending_.pop_front();
    ++counts_.given_up;
  }
  return open_;
}

/// As many tokens at once as the executor takes: how a stripe is cut changes no bit of it.
Result<void> TruthCheck::compute(const kvcache::AuditStep& step, const kvcache::KvCacheManager& kv,
                                 runtime::Executor& executor) const {
  const std::vector<TokenId>& tokens = pending_.front().tokens;
  runtime::BatchChunk chunk;
  chunk.sequence = kAuditId;
  chunk.tokens = tokens;
  chunk.num_prompt_tokens = static_cast<std::uint32_t>(tokens.size());
  chunk.request = &request_;
  for (std::size_t group = 0; group < kv.geometry().groups.size(); ++group) {
    chunk.block_tables[group] = kv.block_table(kAuditId, group);
  }
  for (std::uint32_t done = 0; done < step.num_tokens; done += chunk.num_tokens) {
    chunk.first_position = step.first_position + done;
    chunk.num_tokens = std::min(step.num_tokens - done, options_.max_step_tokens);
    chunk.first_logits_row = chunk.num_tokens;  // none
    runtime::Batch batch;
    batch.num_tokens = chunk.num_tokens;
    batch.chunks.push_back(chunk);
    const Result<StepResult> result = executor.execute(batch);
    if (!result) return tl::unexpected(result.error());
  }
  return {};
}

void TruthCheck::compare(const kvcache::AuditStep& step, kvcache::KvCacheManager& kv,
                         const runtime::Executor& executor) {
  const bool equal = is_equal(step, executor);
  kv.end_audit_step(kAuditId, equal);
  counts_.tokens += step.num_tokens;
  compared_tokens_ += step.num_tokens;
  leaves_some_out_ = leaves_some_out_ || step.leaves_some_out;
  if (equal) return;
  ++counts_.mismatches;
  const std::uint32_t last = step.first_position + step.num_tokens - 1;
  report("the cached keys and values of tokens " + std::to_string(step.first_position) + " to " +
         std::to_string(last) + " of a prefix of " +
         std::to_string(pending_.front().tokens.size()) +
         " tokens are not what is computed for them; dropped, with all that follows them");
  end(kv, End::kCompared);
}

void TruthCheck::end(kvcache::KvCacheManager& kv, End how) {
  ++(how == End::kCompared ? counts_.prefixes : counts_.given_up);
  close(kv);
  pending_.pop_front();
}

void TruthCheck::close(kvcache::KvCacheManager& kv) {
  if (open_) kv.close_audit(kAuditId);
  open_ = false;
}

void TruthCheck::interrupt(kvcache::KvCacheManager& kv) {
  const kvcache::KvTotals before = kv.totals();
  close(kv);
  book(before, kv.totals());
}

void TruthCheck::abandon(kvcache::KvCacheManager& kv) {
  interrupt(kv);
  counts_.given_up += pending_.size();
  pending_.clear();
}

/// Nobody else has blocks while it has some, so that the pool's counts are its own.
TruthCheck::Holding TruthCheck::holding(const kvcache::KvCacheManager& kv) const {
  Holding holding;
  if (!open_) return holding;
  std::uint32_t fresh = 0;
  for (std::size_t group = 0; group < kv.geometry().groups.size(); ++group) {
    for (const BlockId block : kv.block_table(kAuditId, group)) {
      fresh += block != kNoBlock && !kv.is_published(block) ? 1 : 0;
    }
  }
  holding.blocks = kv.num_live_blocks();
  holding.cached = holding.blocks - fresh;
  return holding;
}

void TruthCheck::book(const kvcache::KvTotals& before, const kvcache::KvTotals& after) {
  books_.taken += after.taken - before.taken;
  books_.returned += after.returned - before.returned;
  books_.window_returned += after.window_returned - before.window_returned;
}

void TruthCheck::report(const std::string& what) const {
  if (options_.on_finding) options_.on_finding(what);
}

}  // namespace kvasir::engine
