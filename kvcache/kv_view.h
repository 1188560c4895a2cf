// The const questions that the planner may ask of the KV cache. Answers change only between steps.
#pragma once

#include "core/ids.h"
#include "kvcache/block_hash.h"
#include "kvcache/kv_geometry.h"

#include <cstdint>

namespace kvasir::kvcache {

/// The longest cached prefix of a token list, in full blocks; never the whole list, since the last
/// token must be computed.
struct PrefixMatch {
  std::uint32_t tokens = 0;
  std::uint32_t blocks = 0;
  std::uint32_t reclaimable_blocks = 0;  // those of `blocks` that count as free now: pinning them
                                         // takes them from the free count
  friend bool operator==(const PrefixMatch&, const PrefixMatch&) = default;
};

class KvView {
 public:
  virtual ~KvView() = default;
  [[nodiscard]] virtual const KvGeometry& geometry() const = 0;
  [[nodiscard]] virtual std::uint32_t num_blocks() const = 0;       // for "can never fit"
  [[nodiscard]] virtual std::uint32_t num_free_blocks() const = 0;  // unused + reclaimable
  [[nodiscard]] virtual std::uint32_t blocks_held(
      SequenceId) const = 0;  // 0 for one that is not admitted
  /// Blocks that no other sequence references: what evicting this one gives back.
  [[nodiscard]] virtual std::uint32_t blocks_freed_by_evicting(SequenceId) const = 0;
  [[nodiscard]] virtual PrefixMatch match_prefix(const HashedTokens& tokens) const = 0;
  /// An empty chain to extend with a sequence's tokens; it stays empty when the prefix cache is
  /// off.
  [[nodiscard]] virtual HashChain new_hash_chain(std::uint64_t cache_salt) const = 0;
};

}  // namespace kvasir::kvcache
