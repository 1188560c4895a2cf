// Integer arithmetic throughout: equal histories give equal forecasts on every machine.
#include "scheduler/forecast.h"

#include "core/check.h"

#include <algorithm>

namespace kvasir::scheduler {

std::uint32_t forecast_remaining_tokens(const SchedulerState& state, const Sequence& sequence) {
  if (!sequence.generates()) return 0;
  const std::uint32_t most =
      sequence.max_total_tokens - std::min(sequence.max_total_tokens, sequence.num_tokens());
  const StopRules& stop = sequence.request->stop;
  const std::uint32_t generated = sequence.num_generated();
  const std::uint32_t mean = state.lengths.mean_tokens();
  const std::uint32_t left_of_mean = mean - std::min(mean, generated);
  const std::uint32_t left_of_min = stop.min_tokens - std::min(stop.min_tokens, generated);
  return std::max(std::min(std::max({left_of_mean, mean / 4, left_of_min}), most), 1U);
}

std::uint32_t forecast_cached_tokens(const SchedulerState& state, const Sequence& sequence) {
  if (!sequence.generates()) return sequence.num_tokens();
  return sequence.num_tokens() + forecast_remaining_tokens(state, sequence) - 1;
}

std::uint64_t blocks_until(const kvcache::KvGeometry& geometry, const Sequence& sequence,
                           std::uint32_t num_computed_tokens, std::uint32_t tokens) {
  const std::uint32_t remaining = sequence.num_tokens() - num_computed_tokens;
  return geometry.blocks_for(tokens, std::clamp(remaining, 1U, geometry.largest_chunk));
}

std::uint64_t reserve_of(const Sequence& sequence, const kvcache::KvView& kv) {
  if (!sequence.immune) return 0;
  const std::uint64_t most = blocks_until(kv.geometry(), sequence, sequence.num_computed_tokens,
                                          sequence.worst_case_tokens());
  const std::uint64_t held = kv.blocks_held(sequence.id);
  KVASIR_CHECK(held <= most, "sequence " << value_of(sequence.id) << " holds " << held
                                         << " blocks, its worst case is " << most);
  return most - held;
}

std::uint64_t reserved_blocks(const SchedulerState& state, const kvcache::KvView& kv) {
  std::uint64_t blocks = 0;
  bool has_immune = false;
  for (const Sequence& sequence : state.running) {
    has_immune = has_immune || sequence.immune;
    blocks += reserve_of(sequence, kv);
  }
  return has_immune ? blocks + kv.shared_window_blocks() : 0;
}

}  // namespace kvasir::scheduler
