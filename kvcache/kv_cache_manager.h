// Which block belongs to whom: the tables of sequences and audits over one store of blocks and the
// prefix cache in it. It decides nothing (the planner counted) and touches no KV bytes (kv_storage
// holds them). Engine thread only.
#pragma once

#include "core/ids.h"
#include "core/step_plan.h"
#include "kvcache/block_hash.h"
#include "kvcache/block_store.h"
#include "kvcache/block_table.h"
#include "kvcache/kv_geometry.h"
#include "kvcache/kv_view.h"
#include "kvcache/prefix_search.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvasir::kvcache {

struct KvCacheOptions {
  KvGeometry geometry;
  std::uint32_t num_blocks = 0;  // of the arena
  std::uint64_t model_hash = 0;  // the model file and every setting that changes K or V
  bool prefix_cache_enabled = true;
  bool copies_partial_stripes = true;  // that a hit may end within a stripe
  BlockHashFn hash = &hash_block;      // another one only in tests
  ReclaimPolicy reclaim_policy = ReclaimPolicy::kCostAware;
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
  bool leaves_some_out =
      false;  // there was no room to keep all that is cached while it is compared
};

/// Calls of one step come in this order: evict, admit and fork, grow, (copy, execute,) commit. A
/// failed requirement is our own bug and aborts. A block that several tables hold is full and
/// computed, and is never written again.
class KvCacheManager final : public KvView {
 public:
  explicit KvCacheManager(const KvCacheOptions& options);

  [[nodiscard]] const KvGeometry& geometry() const override { return options_.geometry; }
  [[nodiscard]] std::uint32_t num_blocks() const override { return store_.pool().num_blocks(); }
  [[nodiscard]] std::uint32_t num_free_blocks() const override { return store_.pool().num_free(); }
  [[nodiscard]] std::uint32_t num_stripes(SequenceId id) const override;
  [[nodiscard]] std::uint32_t blocks_held(SequenceId id) const override;
  [[nodiscard]] std::uint32_t blocks_freed_by_evicting(SequenceId id) const override;
  [[nodiscard]] std::uint32_t shared_window_blocks() const override;
  [[nodiscard]] PrefixMatch match_prefix(const HashedTokens& tokens) const override;
  [[nodiscard]] PrefixMatch match_whole_stripes(const HashedTokens& tokens) const override;
  [[nodiscard]] bool can_fork(SequenceId source, std::uint32_t num_tokens) const override;
  [[nodiscard]] HashChain new_hash_chain(std::uint64_t cache_salt) const override;

  /// Referenced by at least one sequence, or pinned.
  [[nodiscard]] std::uint32_t num_live_blocks() const { return num_blocks() - num_free_blocks(); }
  /// Unreferenced, kept for a later prefix; part of num_free_blocks().
  [[nodiscard]] std::uint32_t num_cached_blocks() const { return store_.pool().num_kept(); }
  [[nodiscard]] const KvTotals& totals() const { return store_.totals(); }

  /// Opens a table that starts with the cached blocks of the first `cached_tokens` tokens, and pins
  /// them. The tokens past the last full stripe are copied: grow() gives the blocks for them and
  /// copies() says from where. Requires: the id has no table; cached_tokens is what match_prefix
  /// says, or what match_whole_stripes says.
  void admit(SequenceId id, const HashedTokens& tokens, std::uint32_t cached_tokens);
  /// Opens a table that shares the full stripes of the first `num_tokens` tokens with the one of
  /// `source`, published or not; the slots past them are copied. Requires: the id has no table;
  /// can_fork(source, num_tokens).
  void fork(SequenceId id, SequenceId source, std::uint32_t num_tokens);
  /// After admit() or fork(), and grow(): what must be copied to where before anything is
  /// computed; empty when the start ends at a stripe's border.
  [[nodiscard]] std::vector<BlockCopy> copies(SequenceId id) const;
  /// Appends stripes of every group; cached blocks are reclaimed when nothing else is free.
  /// Requires room: the plan counted it.
  void grow(SequenceId id, std::uint32_t num_new_stripes);
  /// The first `num_computed_tokens` are in the cache now: full stripes are published, and those
  /// that no later query sees are given back. A block that somebody else published meanwhile is
  /// given back and the published one takes its place in the table.
  void commit(SequenceId id, const HashedTokens& tokens, std::uint32_t num_computed_tokens);
  /// Takes back stripes past the first `num_tokens` tokens (rejected draft tokens). Requires: no
  /// published one is among them, and no window has moved past what the next query then sees.
  void truncate(SequenceId id, std::uint32_t num_tokens);
  /// Closes the table; blocks without another reference become free, published ones stay cached.
  /// The last, partly filled stripe is kept too, for a later prefix to copy from.
  KvReceipt evict(SequenceId id, const HashedTokens& tokens);

  /// Opens a table that computes the first `num_tokens` tokens anew, stripe by stripe, to compare
  /// them with what is cached: the stripes before are the cached ones in groups without a window,
  /// which have been compared, and its own in others. So a few blocks are enough to prove all of a
  /// prefix by induction. False, and no table: it is not wholly cached any more. What is compared
  /// stays cached until close_audit(). Requires: the id has no table; num_tokens are known.
  [[nodiscard]] bool open_audit(SequenceId id, const HashedTokens& tokens,
                                std::uint32_t num_tokens);
  /// Grows by one stripe to compute. None: finished, abandoned, or no room.
  [[nodiscard]] std::optional<AuditStep> next_audit_step(SequenceId id);
  /// The step was computed. When what it compared was not equal the audit is over: the cached
  /// stripe, those beside it that a copy may have come to or from, and all after them leave the
  /// cache. Tables that hold them go on, and never publish what follows.
  void end_audit_step(SequenceId id, bool equal);
  /// At any time: gives back all that the audit holds.
  void close_audit(SequenceId id);

  /// The blocks of a sequence in one group in order: entry stripe * blocks_per_stripe + i. Those
  /// behind the window are kNoBlock. Valid until the next call that changes the manager.
  [[nodiscard]] std::span<const BlockId> block_table(SequenceId id, std::size_t group = 0) const;
  /// As far as the sequence has come.
  [[nodiscard]] const KvReceipt& receipt(SequenceId id) const;
  /// That the slots of the next `num_tokens` tokens are the sequence's own: in blocks that no other
  /// table holds and the prefix cache does not know.
  void check_may_write(SequenceId id, std::uint32_t num_tokens) const;
  /// Published blocks are never written again. For checks in tests and executors.
  [[nodiscard]] bool is_published(BlockId block) const { return store_.owner(block) != kNoNode; }
  [[nodiscard]] std::uint32_t references(BlockId block) const {
    return store_.pool().references(block);
  }
  [[nodiscard]] std::uint32_t num_sequences() const {
    return static_cast<std::uint32_t>(tables_.size()) - num_audits_;
  }

  /// Reference counts equal the tables, free + live == all, every published block's parent is
  /// published, and blocks are shared only full, computed and after the same prefix. O(blocks).
  void check_integrity() const;

 private:
  struct Audit {
    std::uint32_t num_tokens = 0;
    bool in_step = false;
    bool over = false;
  };
  struct Table {
    explicit Table(const KvGeometry& geometry) : blocks(geometry) {}
    BlockTable blocks;
    std::uint32_t num_computed_tokens = 0;  // their slots are not written again
    std::vector<NodeId> nodes;              // of the stripes that are in the prefix cache
    bool may_publish = true;                // false once something has cut the chain of nodes
    /// Until commit(): of each group the stripe that the tokens past the full ones are copied from.
    std::array<std::vector<BlockId>, kMaxLayerGroups> copied_from;
    std::optional<std::uint32_t> copied_stripe;  // into which they are copied; it never changes
    std::optional<Audit> audit;  // then nodes are those to compare, with the last, partial one
    [[nodiscard]] bool copies() const { return !copied_from[0].empty(); }
    [[nodiscard]] NodeId last_node() const { return nodes.empty() ? kNoNode : nodes.back(); }
  };
  [[nodiscard]] const Table& table(SequenceId id) const;
  [[nodiscard]] Table& table(SequenceId id);
  [[nodiscard]] Table& open(SequenceId id);
  [[nodiscard]] std::uint32_t stripes_for(std::uint32_t tokens) const;
  [[nodiscard]] bool is_windowed(std::size_t group) const;
  [[nodiscard]] PrefixMatch match(const HashedTokens& tokens, bool with_copy) const;
  void enter_nodes(Table& table, std::vector<NodeId> nodes);
  void copy_from_cache(Table& table, const HashedTokens& tokens, std::uint32_t num_tokens);
  void end_copy(Table& table);
  void publish(Table& table, const HashedTokens& tokens, std::uint32_t num_full_stripes);
  [[nodiscard]] NodeId node_of(const Table& table, const HashedTokens& tokens);
  void adopt(Table& table, NodeId node);
  void anchor_branch(const Table& table);
  void keep_partial(const Table& table, const HashedTokens& tokens);
  void drop_doubtful(NodeId node);
  [[nodiscard]] std::vector<NodeId> doubtful_with(NodeId node) const;
  void drop(NodeId node);
  void check_table(SequenceId id, const Table& checked) const;
  void check_nodes(SequenceId id, const Table& checked) const;
  [[nodiscard]] NodeId expected_owner(const Table& checked, std::size_t group,
                                      std::uint32_t index) const;
  void check_sharing() const;

  KvCacheOptions options_;
  BlockStore store_;
  std::unordered_map<SequenceId, Table> tables_;  // of sequences and audits
  std::uint32_t num_audits_ = 0;
};

}  // namespace kvasir::kvcache
