// How much a sequence is likely to generate yet, and how many blocks it can come to need: what an
// admission is charged, and what is kept for those that run. Counts only; who is admitted is
// admission's decision.
#pragma once

#include "kvcache/kv_view.h"
#include "scheduler/scheduler_state.h"

#include <cstdint>

namespace kvasir::scheduler {

/// Tokens that the sequence is expected to generate yet: what the mean of ended answers leaves, at
/// least a quarter of that mean, for an answer that has outlived it will not end at once. Never
/// fewer than its min_tokens ask for nor more than its own limit. At least 1, and 0 for one whose
/// prompt alone is computed.
[[nodiscard]] std::uint32_t forecast_remaining_tokens(const SchedulerState& state,
                                                      const Sequence& sequence);

/// Tokens that it is expected to have in the cache at most: those known and the forecast, less the
/// last one, which is never computed.
[[nodiscard]] std::uint32_t forecast_cached_tokens(const SchedulerState& state,
                                                   const Sequence& sequence);

/// Blocks that a sequence holds at most until it has `tokens` tokens in the cache, when it goes on
/// from `num_computed_tokens`: no chunk of it is longer than what it has still to compute now.
[[nodiscard]] std::uint64_t blocks_until(const kvcache::KvGeometry& geometry,
                                         const Sequence& sequence,
                                         std::uint32_t num_computed_tokens, std::uint32_t tokens);

/// Of the free blocks those that an immune sequence may still claim. 0 for another.
[[nodiscard]] std::uint64_t reserve_of(const Sequence& sequence, const kvcache::KvView& kv);

/// Of the free blocks those that are kept for the worst cases of the running, and for what their
/// windows will not give back because others hold it too.
[[nodiscard]] std::uint64_t reserved_blocks(const SchedulerState& state, const kvcache::KvView& kv);

}  // namespace kvasir::scheduler
