// The truth check: of the prefix-cache hits a sample is computed again, cold, when nothing else
// runs or waits, and compared with what the cache holds, byte for byte. What it finds wrong leaves
// the cache. It decides when and what; which blocks that takes is kv_cache_manager's.
#pragma once

#include "core/ids.h"
#include "core/request.h"
#include "core/step_plan.h"
#include "kvcache/kv_cache_manager.h"
#include "runtime/executor.h"
#include "scheduler/scheduler_state.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace kvasir::engine {

struct TruthCheckOptions {
  double rate = 0.0;                                   // share of the hits that are checked, 0..1
  std::uint32_t max_step_tokens = 512;                 // that the executor takes at once
  std::function<void(const std::string&)> on_finding;  // may be empty
};

struct TruthCheckCounts {
  std::uint64_t prefixes = 0;  // compared to their end, or to the first difference
  std::uint64_t tokens = 0;    // computed for it
  std::uint64_t mismatches = 0;
  std::uint64_t given_up = 0;  // sampled and not wholly compared: not cached any more, no room for
                               // it, interrupted too often, forgotten for newer ones, or failed
};

/// One audit runs at a time, stripe by stripe. Work that arrives ends it: its blocks go back at
/// once, and it starts again from its first token when there is nothing to do, at most
/// kMaxAuditStarts times. Engine thread only.
class TruthCheck {
 public:
  /// Hits that wait to be checked. Past it the oldest is forgotten: its blocks are the least likely
  /// to be cached still.
  static constexpr std::size_t kMaxPending = 16;
  static constexpr std::uint32_t kMaxAuditStarts = 4;

  explicit TruthCheck(TruthCheckOptions options);

  /// Notes what the plan's admissions took from the prefix cache, as far as it is sampled.
  /// Requires: the plan was applied.
  void sample(const StepPlan& plan, const scheduler::SchedulerState& state);
  [[nodiscard]] bool has_work() const { return !pending_.empty(); }
  /// Computes and compares one stripe. Requires: has_work(), and no sequence has blocks.
  void step(kvcache::KvCacheManager& kv, runtime::Executor& executor);
  /// Gives the blocks of an audit that is under way back, because others need them.
  void interrupt(kvcache::KvCacheManager& kv);
  /// As interrupt(), and forgets what was still to be checked.
  void abandon(kvcache::KvCacheManager& kv);

  [[nodiscard]] const TruthCheckCounts& counts() const { return counts_; }
  /// What audits took from the pool and gave back, which no sequence reports. Only taken, returned
  /// and window_returned.
  [[nodiscard]] const kvcache::KvTotals& books() const { return books_; }
  /// Blocks of the audit that is under way: they are nobody's, and free as soon as anybody wants
  /// them. Of them `cached`, which the prefix cache keeps.
  struct Holding {
    std::uint32_t blocks = 0;
    std::uint32_t cached = 0;
  };
  [[nodiscard]] Holding holding(const kvcache::KvCacheManager& kv) const;

 private:
  /// A hit: the tokens of the prefix, and the hashes of its full stripes.
  struct Entry {
    std::vector<TokenId> tokens;
    kvcache::HashChain hashes;
    std::uint32_t starts = 0;
    [[nodiscard]] kvcache::HashedTokens hashed_tokens() const { return {tokens, hashes}; }
  };
  void note(Entry entry);
  [[nodiscard]] bool is_sampled();
  void go_on(kvcache::KvCacheManager& kv, runtime::Executor& executor);
  [[nodiscard]] bool open(kvcache::KvCacheManager& kv);
  void close(kvcache::KvCacheManager& kv);
  [[nodiscard]] Result<void> compute(const kvcache::AuditStep& step,
                                     const kvcache::KvCacheManager& kv,
                                     runtime::Executor& executor) const;
  void compare(const kvcache::AuditStep& step, kvcache::KvCacheManager& kv,
               const runtime::Executor& executor);
  enum class End { kCompared, kGivenUp };
  void end(kvcache::KvCacheManager& kv, End how);
  void book(const kvcache::KvTotals& before, const kvcache::KvTotals& after);
  void report(const std::string& what) const;

  TruthCheckOptions options_;
  std::deque<Entry> pending_;  // the first is under way when open_
  bool open_ = false;
  std::uint32_t compared_tokens_ = 0;  // of the first, since it was opened
  bool leaves_some_out_ = false;       // some of what is cached of it was not compared
  std::uint64_t num_hits_ = 0;         // so far, sampled or not
  Request request_;                    // of the batches: nothing is sampled
  TruthCheckCounts counts_;
  kvcache::KvTotals books_;
};

}  // namespace kvasir::engine
