// The const questions that the planner may ask of the KV cache. Answers change only between steps.
#pragma once

#include "core/ids.h"
#include "kvcache/block_hash.h"
#include "kvcache/kv_geometry.h"

#include <cstdint>

namespace kvasir::kvcache {

/// The longest prefix of a token list that need not be computed; never the whole list, since the
/// last token must be. In groups with a window only what the next query sees has to be there.
struct PrefixMatch {
  std::uint32_t tokens = 0;
  std::uint32_t stripes = 0;  // full ones, which are shared; the tokens past them are copied out of
                              // a cached block, which stays pinned until the step is committed
  /// Blocks of groups without a window that running sequences hold already: sharing them costs
  /// nothing. What is shared in windowed groups is charged in full: see shared_window_blocks().
  std::uint32_t live_blocks = 0;
  /// Blocks that are free now and are pinned for the copy.
  std::uint32_t copy_blocks = 0;
  friend bool operator==(const PrefixMatch&, const PrefixMatch&) = default;
};

/// A sequence grows by stripes (kv_geometry.h), one of each group at a time, all of which end at
/// the same token. Blocks are what the budget counts.
class KvView {
 public:
  virtual ~KvView() = default;
  [[nodiscard]] virtual const KvGeometry& geometry() const = 0;
  [[nodiscard]] virtual std::uint32_t num_blocks() const = 0;       // for "can never fit"
  [[nodiscard]] virtual std::uint32_t num_free_blocks() const = 0;  // unused + reclaimable
  /// Where the tables of a sequence end, in stripes from its first token; 0 for one that is not
  /// admitted.
  [[nodiscard]] virtual std::uint32_t num_stripes(SequenceId) const = 0;
  /// Over all groups, shared ones included; less than num_stripes says where windows have moved on.
  [[nodiscard]] virtual std::uint32_t blocks_held(SequenceId) const = 0;
  /// Blocks that no other sequence references: what evicting this one gives back.
  [[nodiscard]] virtual std::uint32_t blocks_freed_by_evicting(SequenceId) const = 0;
  /// The sum of (references - 1) over the live blocks of windowed groups. A window that moves past
  /// such a block gives nothing back to the pool, though its sequence may grow by another: so much
  /// less than the free count is to be promised.
  [[nodiscard]] virtual std::uint32_t shared_window_blocks() const = 0;
  [[nodiscard]] virtual PrefixMatch match_prefix(const HashedTokens& tokens) const = 0;
  /// The same without a copy, for when its pinned blocks do not fit: whole stripes only. It is not
  /// always the stripes of match_prefix(), for it ends earlier and a window may need one more.
  [[nodiscard]] virtual PrefixMatch match_whole_stripes(const HashedTokens& tokens) const {
    PrefixMatch match = match_prefix(tokens);
    match.tokens = match.stripes * geometry().block_tokens;
    match.copy_blocks = 0;
    return match;
  }
  /// Whether the running sequence `source` still holds all that a fork at `num_tokens` reads.
  [[nodiscard]] virtual bool can_fork(SequenceId source, std::uint32_t num_tokens) const = 0;
  /// An empty chain to extend with a sequence's tokens; it stays empty when the prefix cache is
  /// off.
  [[nodiscard]] virtual HashChain new_hash_chain(std::uint64_t cache_salt) const = 0;
};

}  // namespace kvasir::kvcache
