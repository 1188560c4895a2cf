// The truth check of a simulation: prefixes that were hits are recomputed in idle steps, to their
// end or cut short, and sometimes with a stale slot planted, which must be found and nothing else.
#pragma once

#include "kvcache/kv_cache_manager.h"
#include "scheduler/sequence.h"
#include "tests/sim/random.h"
#include "tests/sim/shadow_executor.h"
#include "tests/sim/tally.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvasir::sim {

class Auditor {
 public:
  Auditor(kvcache::KvCacheManager& kv, ShadowExecutor& executor, Random& random)
      : kv_(kv), executor_(executor), random_(random) {}

  /// A sequence begins with so many tokens of the prefix cache.
  void remember(const scheduler::Sequence& sequence, std::uint32_t cached_tokens);
  /// Audits one of the remembered hits. Requires: nobody runs.
  void audit(Tally& tally);

 private:
  struct Hit {
    std::vector<TokenId> tokens;
    kvcache::HashChain hashes;
    std::uint32_t cached_tokens = 0;
    [[nodiscard]] kvcache::HashedTokens text() const { return {tokens, hashes}; }
  };
  /// A slot of a cached block, and the position that it is of.
  struct Place {
    BlockId block{};
    std::uint32_t position = 0;
  };
  struct Outcome {
    bool opened = false;
    bool finished = false;
    std::optional<std::uint32_t> wrong_at;  // first position of the stripe that was found stale
    std::vector<Place> compared;
  };
  [[nodiscard]] Outcome run(const Hit& hit, std::uint32_t most_steps);
  void plant_and_find(const Hit& hit, const Place& place, Tally& tally);

  kvcache::KvCacheManager& kv_;
  ShadowExecutor& executor_;
  Random& random_;
  std::vector<Hit> hits_;
  std::uint64_t num_audits_ = 0;
};

}  // namespace kvasir::sim
