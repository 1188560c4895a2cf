// Which block belongs to whom: block tables, reference counts and the prefix cache under one fixed
// number of blocks. It decides nothing (the planner counted) and touches no KV bytes (kv_storage
// holds them). Engine thread only.
#pragma once

#include "core/ids.h"
#include "core/step_plan.h"
#include "kvcache/block_hash.h"
#include "kvcache/block_pool.h"
#include "kvcache/kv_geometry.h"
#include "kvcache/kv_view.h"
#include "kvcache/prefix_cache.h"

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvasir::kvcache {

struct KvCacheOptions {
  KvGeometry geometry;           // one layer group; see kv_storage.h
  std::uint32_t num_blocks = 0;  // of the arena
  std::uint64_t model_hash = 0;  // the model file and every setting that changes K or V
  bool prefix_cache_enabled = true;
  BlockHashFn hash = &hash_block;  // another one only in tests
};

/// What a sequence took from the pool and gave back while it held a table, in blocks. A block is
/// taken when it was free before and returned when it is free afterwards, whether it keeps its
/// content for a later prefix or not: summed over all sequences, taken less returned is live.
struct KvReceipt {
  std::uint32_t peak_blocks = 0;    // the most that the table held at once, shared ones included
  std::uint32_t shared_blocks = 0;  // those of them, at that moment, that it had not allocated:
                                    // from the prefix cache or from a fork's source
  std::uint64_t taken_blocks = 0;
  std::uint64_t returned_blocks = 0;
  friend bool operator==(const KvReceipt&, const KvReceipt&) = default;
};

/// Counted since the start, in blocks.
struct KvTotals {
  std::uint64_t taken = 0;     // see KvReceipt
  std::uint64_t returned = 0;  // of them by windows that moved on: window_returned
  std::uint64_t window_returned = 0;
  std::uint64_t reclaimed = 0;  // cached content that gave way to other content
  std::uint64_t dropped = 0;    // cached content thrown away because an audit found it stale
};

/// What one step of an audit computes and compares: see KvCacheManager::open_audit.
struct AuditStep {
  std::uint32_t first_position = 0;
  std::uint32_t num_tokens = 0;  // at most block_tokens
  struct Pair {
    BlockId cached{};
    BlockId fresh{};
  };
  std::vector<Pair> pairs;  // whose first num_tokens slots must be equal once computed
};

/// Calls of one step come in this order: evict, admit and fork, grow, (copy, execute,) commit. A
/// failed requirement is our own bug and aborts. A block that several tables hold is full and
/// computed, and is never written again.
class KvCacheManager final : public KvView {
 public:
  explicit KvCacheManager(const KvCacheOptions& options);

  [[nodiscard]] const KvGeometry& geometry() const override { return options_.geometry; }
  [[nodiscard]] std::uint32_t num_blocks() const override { return pool_.num_blocks(); }
  [[nodiscard]] std::uint32_t num_free_blocks() const override { return pool_.num_free(); }
  [[nodiscard]] std::uint32_t num_stripes(SequenceId id) const override;
  [[nodiscard]] std::uint32_t blocks_held(SequenceId id) const override;
  [[nodiscard]] std::uint32_t blocks_freed_by_evicting(SequenceId id) const override;
  [[nodiscard]] std::uint32_t shared_window_blocks() const override;
  [[nodiscard]] PrefixMatch match_prefix(const HashedTokens& tokens) const override;
  [[nodiscard]] bool can_fork(SequenceId source, std::uint32_t num_tokens) const override;
  [[nodiscard]] HashChain new_hash_chain(std::uint64_t cache_salt) const override;

  /// Referenced by at least one sequence, or pinned.
  [[nodiscard]] std::uint32_t num_live_blocks() const { return num_blocks() - num_free_blocks(); }
  /// Unreferenced, kept for a later prefix; part of num_free_blocks().
  [[nodiscard]] std::uint32_t num_cached_blocks() const { return num_cached_; }
  [[nodiscard]] const KvTotals& totals() const { return totals_; }

  /// Opens a table that starts with the cached blocks of the first `cached_tokens` tokens, and pins
  /// them. The tokens past the last full stripe are copied: grow() gives the blocks for them and
  /// copies() says from where. Requires: the id has no table; cached_tokens is what match_prefix
  /// says, or fewer in whole stripes.
  void admit(SequenceId id, const HashedTokens& tokens, std::uint32_t cached_tokens);
  /// Opens a table that shares the full stripes of the first `num_tokens` tokens with the one of
  /// `source`, published or not; the slots past them are copied. Requires: the id has no table;
  /// can_fork(source, num_tokens).
  void fork(SequenceId id, SequenceId source, std::uint32_t num_tokens);
  /// After admit() or fork(), and grow(): what must be copied to where before anything is
  /// computed; empty when the start ends at a stripe's border.
  [[nodiscard]] std::vector<BlockCopy> copies(SequenceId id) const;
  /// Appends stripes, a block_per_stripe blocks of each group; cached ones are reclaimed when
  /// nothing else is free. Requires room: the plan counted it.
  void grow(SequenceId id, std::uint32_t num_new_stripes);
  /// The first `num_computed_tokens` are in the cache now: full stripes are published, and those
  /// that no later query sees are given back. A block that somebody else published meanwhile is
  /// given back and the published one takes its place in the table.
  void commit(SequenceId id, const HashedTokens& tokens, std::uint32_t num_computed_tokens);
  /// Takes back stripes past the first `num_tokens` tokens (rejected draft tokens). Published ones
  /// stay.
  void truncate(SequenceId id, std::uint32_t num_tokens);
  /// Closes the table; blocks without another reference become free, published ones stay cached.
  /// The last, partly filled stripe is kept too, for a later prefix to copy from.
  KvReceipt evict(SequenceId id, const HashedTokens& tokens);

  /// The blocks of a sequence in one group in order: entry stripe * blocks_per_stripe + i. Those
  /// behind the window are kNoBlock. Valid until the next call that changes the manager.
  [[nodiscard]] std::span<const BlockId> block_table(SequenceId id, std::size_t group = 0) const;
  /// As far as the sequence has come.
  [[nodiscard]] const KvReceipt& receipt(SequenceId id) const;
  /// That the slots of the next `num_tokens` tokens are the sequence's own: in blocks that no other
  /// table holds and the prefix cache does not know.
  void check_may_write(SequenceId id, std::uint32_t num_tokens) const;
  /// Published blocks are never written again. For checks in tests and executors.
  [[nodiscard]] bool is_published(BlockId block) const { return cache_.contains(block); }
  [[nodiscard]] std::uint32_t references(BlockId block) const { return pool_.references(block); }
  [[nodiscard]] std::uint32_t num_sequences() const {
    return static_cast<std::uint32_t>(tables_.size());
  }

  /// Reference counts equal the tables, free + live == all, every published block's parent is
  /// published, and blocks are shared only full, computed and after the same prefix. O(blocks).
  void check_integrity() const;

 private:
  struct Table {
    std::vector<BlockId> blocks;
    std::uint32_t num_computed_tokens = 0;  // their slots are not written again
    std::uint32_t num_published = 0;        // the first so many are in the prefix cache
    bool may_publish = true;                // false once a hash collision has cut the chain
    std::optional<BlockId> copy_source;     // of the slots past the shared blocks, until commit()
    KvReceipt receipt;
  };
  [[nodiscard]] const Table& table(SequenceId id) const;
  [[nodiscard]] Table& table(SequenceId id);
  [[nodiscard]] BlockIdentity identity(const HashedTokens& tokens, std::uint32_t index,
                                       std::optional<BlockId> parent) const;
  [[nodiscard]] std::uint32_t matchable_blocks(const HashedTokens& tokens) const;
  [[nodiscard]] Table& open(SequenceId id);
  void check_sharing() const;
  void publish(Table& table, const HashedTokens& tokens, std::uint32_t num_full_blocks);
  void pin(BlockId block);
  void release(BlockId block);

  KvCacheOptions options_;
  BlockPool pool_;
  PrefixCache cache_;
  std::uint32_t num_cached_ = 0;
  KvTotals totals_;
  std::unordered_map<SequenceId, Table> tables_;
};

}  // namespace kvasir::kvcache
