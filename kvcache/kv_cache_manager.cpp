// Tables over the store. Two rules make a published parent outlive its children: every table that
// holds a stripe of a group without a window holds all stripes before it, and tables are released
// from their end.
#include "kvcache/kv_cache_manager.h"

#include "core/check.h"

#include <algorithm>
#include <utility>

namespace kvasir::kvcache {

KvCacheManager::KvCacheManager(const KvCacheOptions& options)
    : options_(options), store_(options.geometry, options.num_blocks, options.reclaim_policy) {
  KVASIR_CHECK(options.num_blocks >= 1);
}

std::uint32_t KvCacheManager::num_stripes(SequenceId id) const {
  const auto found = tables_.find(id);
  return found == tables_.end() ? 0 : found->second.blocks.num_stripes();
}

std::uint32_t KvCacheManager::blocks_held(SequenceId id) const {
  const auto found = tables_.find(id);
  return found == tables_.end() ? 0 : found->second.blocks.num_held();
}

std::uint32_t KvCacheManager::blocks_freed_by_evicting(SequenceId id) const {
  const auto found = tables_.find(id);
  return found == tables_.end() ? 0 : found->second.blocks.num_freed_by_closing(store_);
}

std::uint32_t KvCacheManager::shared_window_blocks() const { return store_.shared_window_blocks(); }

bool KvCacheManager::can_fork(SequenceId source, std::uint32_t num_tokens) const {
  const Table& shared = table(source);
  if (num_tokens > shared.num_computed_tokens) return false;
  for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
    if (shared.blocks.first_held(group) >
        options_.geometry.first_visible_stripe(group, num_tokens)) {
      return false;
    }
  }
  return true;
}

PrefixMatch KvCacheManager::match_prefix(const HashedTokens& tokens) const {
  return match(tokens, options_.copies_partial_stripes);
}

PrefixMatch KvCacheManager::match_whole_stripes(const HashedTokens& tokens) const {
  return match(tokens, false);
}

PrefixMatch KvCacheManager::match(const HashedTokens& tokens, bool with_copy) const {
  const CachedStart start = longest_start(store_, tokens, with_copy);
  PrefixMatch match;
  match.stripes = static_cast<std::uint32_t>(start.nodes.size());
  match.tokens = match.stripes * options_.geometry.block_tokens + start.copied.tokens;
  for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
    const std::uint32_t stripe_blocks = options_.geometry.blocks_per_stripe(group);
    if (start.copied.node != kNoNode &&
        store_.references(store_.tree().stripe(start.copied.node, group)) == 0) {
      match.copy_blocks += stripe_blocks;
    }
    if (is_windowed(group)) continue;
    for (const NodeId node : start.nodes) {
      if (store_.references(store_.tree().stripe(node, group)) > 0) {
        match.live_blocks += stripe_blocks;
      }
    }
  }
  return match;
}

HashChain KvCacheManager::new_hash_chain(std::uint64_t cache_salt) const {
  if (!options_.prefix_cache_enabled) return {};
  return {{options_.model_hash, options_.geometry.type, cache_salt},
          options_.geometry.block_tokens,
          options_.hash};
}

void KvCacheManager::admit(SequenceId id, const HashedTokens& tokens, std::uint32_t cached_tokens) {
  KVASIR_CHECK(cached_tokens == 0 || cached_tokens < tokens.tokens.size(),
               cached_tokens << " tokens are the whole list");
  Table& opened = open(id);
  const std::uint32_t num_full = cached_tokens / options_.geometry.block_tokens;
  std::vector<NodeId> nodes = cached_chain(store_.tree(), tokens, num_full);
  KVASIR_CHECK(nodes.size() == num_full, "stripe " << nodes.size()
                                                   << " of the promised prefix is "
                                                      "not cached");
  for (std::uint32_t index = 0; index < num_full; ++index) {
    BlockTable::Stripes stripes;
    for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
      if (index < options_.geometry.first_visible_stripe(group, cached_tokens)) continue;
      stripes[group] = store_.tree().stripe(nodes[index], group);
      KVASIR_CHECK(!stripes[group].empty(),
                   "stripe " << index << " of the promised prefix lacks group " << group);
      store_.anchor(nodes[index], group);
    }
    opened.blocks.share(store_, stripes);
    store_.hit(nodes[index]);
  }
  enter_nodes(opened, std::move(nodes));
  opened.num_computed_tokens = cached_tokens;
  if (cached_tokens % options_.geometry.block_tokens != 0) {
    copy_from_cache(opened, tokens, cached_tokens);
  }
}

/// Pins what the tokens past the last full stripe are copied from.
void KvCacheManager::copy_from_cache(Table& table, const HashedTokens& tokens,
                                     std::uint32_t num_tokens) {
  const std::uint32_t num_full = num_tokens / options_.geometry.block_tokens;
  // Asked as match_prefix() asks, or another node might be found, with other blocks to pin.
  const auto end = static_cast<std::uint32_t>(tokens.tokens.size()) - 1;
  const PrefixTree::Shared source =
      copy_source(store_.tree(), tokens, table.last_node(), num_full, end);
  KVASIR_CHECK(source.tokens >= num_tokens % options_.geometry.block_tokens,
               source.tokens << " of the promised tokens past stripe " << num_full);
  store_.hit(source.node);
  table.copied_stripe = num_full;
  for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
    const std::span<const BlockId> stripe = store_.tree().stripe(source.node, group);
    table.blocks.pin(store_, group, stripe);
    table.copied_from[group].assign(stripe.begin(), stripe.end());
  }
}

void KvCacheManager::end_copy(Table& table) {
  if (!table.copies()) return;
  for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
    table.copied_from[group].clear();
    table.blocks.unpin(store_, group);
  }
}

void KvCacheManager::fork(SequenceId id, SequenceId source, std::uint32_t num_tokens) {
  Table& forked = open(id);
  const Table& shared = table(source);
  KVASIR_CHECK(num_tokens >= 1);
  KVASIR_CHECK(can_fork(source, num_tokens),
               num_tokens << " tokens of sequence " << value_of(source) << ", which has computed "
                          << shared.num_computed_tokens);
  const std::uint32_t num_full = num_tokens / options_.geometry.block_tokens;
  const bool ends_within = num_tokens % options_.geometry.block_tokens != 0;
  for (std::uint32_t index = 0; index < num_full; ++index) {
    BlockTable::Stripes stripes;
    for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
      if (index < options_.geometry.first_visible_stripe(group, num_tokens)) continue;
      stripes[group] = shared.blocks.stripe(group, index);
    }
    forked.blocks.share(store_, stripes);
  }
  for (std::size_t group = 0; ends_within && group < options_.geometry.groups.size(); ++group) {
    const std::span<const BlockId> stripe = shared.blocks.stripe(group, num_full);
    forked.copied_from[group].assign(stripe.begin(), stripe.end());
  }
  const std::size_t num_nodes = std::min<std::size_t>(num_full, shared.nodes.size());
  const auto first = shared.nodes.begin();
  enter_nodes(forked, {first, first + static_cast<std::ptrdiff_t>(num_nodes)});
  if (ends_within) forked.copied_stripe = num_full;
  // Where something has cut the source's chain, this one's is cut too: also when that may have been
  // what it copies.
  forked.may_publish = num_nodes == num_full && (shared.may_publish || !ends_within);
  forked.num_computed_tokens = num_tokens;
}

std::vector<BlockCopy> KvCacheManager::copies(SequenceId id) const {
  const Table& copied = table(id);
  if (!copied.copies()) return {};
  const std::uint32_t index = copied.num_computed_tokens / options_.geometry.block_tokens;
  KVASIR_CHECK(index < copied.blocks.num_stripes(),
               "sequence " << value_of(id) << " has not grown");
  std::vector<BlockCopy> copies;
  for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
    const std::span<const BlockId> own = copied.blocks.stripe(group, index);
    for (std::size_t i = 0; i < own.size(); ++i) {
      copies.push_back({copied.copied_from[group][i], own[i],
                        copied.num_computed_tokens % options_.geometry.block_tokens});
    }
  }
  return copies;
}

void KvCacheManager::grow(SequenceId id, std::uint32_t num_new_stripes) {
  Table& grown = table(id);
  const std::uint64_t wanted =
      std::uint64_t{num_new_stripes} * options_.geometry.blocks_per_stripes();
  KVASIR_CHECK(wanted <= num_free_blocks(),
               wanted << " blocks wanted, " << num_free_blocks() << " free");
  for (std::uint32_t i = 0; i < num_new_stripes; ++i) grown.blocks.grow(store_);
}

void KvCacheManager::commit(SequenceId id, const HashedTokens& tokens,
                            std::uint32_t num_computed_tokens) {
  Table& committed = table(id);
  KVASIR_CHECK(num_computed_tokens <= tokens.tokens.size(),
               num_computed_tokens << " of " << tokens.tokens.size() << " known tokens");
  KVASIR_CHECK(
      stripes_for(num_computed_tokens) <= committed.blocks.num_stripes(),
      num_computed_tokens << " tokens in " << committed.blocks.num_stripes() << " stripes");
  KVASIR_CHECK(num_computed_tokens >= committed.num_computed_tokens,
               num_computed_tokens << " after " << committed.num_computed_tokens);
  committed.num_computed_tokens = num_computed_tokens;
  end_copy(committed);
  if (tokens.hashes.is_enabled()) {
    publish(committed, tokens, num_computed_tokens / options_.geometry.block_tokens);
  }
  // What the last computed token saw stays as long as it is the last: another choice of the same
  // prompt computes it again. That is within what stripes_for_group() counts: W + chunk positions
  // lie in no more stripes than one more than W + chunk - 1 fill.
  const std::uint32_t last = std::max(num_computed_tokens, 1U) - 1;
  for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
    committed.blocks.slide(store_, group, options_.geometry.first_visible_stripe(group, last));
  }
}

void KvCacheManager::publish(Table& table, const HashedTokens& tokens,
                             std::uint32_t num_full_stripes) {
  while (table.may_publish && table.nodes.size() < num_full_stripes) {
    const NodeId node = node_of(table, tokens);
    if (node == kNoNode) {
      // Without this stripe those after it cannot be found either.
      table.may_publish = false;
      return;
    }
    const NodeId parent = table.last_node();
    const bool is_new = !store_.tree().has_blocks(node);
    store_.enter(node);
    store_.leave(parent);
    table.nodes.push_back(node);
    adopt(table, node);
    if (parent == kNoNode) continue;
    // A shorter stripe that this one covers has given way by now.
    if (store_.tree().num_children(parent) > 1) {
      anchor_branch(table);
    } else if (is_new) {
      store_.follow(node);
    }
  }
}

/// The node for the next stripe that is not published yet: somebody else's, or a new one.
NodeId KvCacheManager::node_of(const Table& table, const HashedTokens& tokens) {
  const std::size_t index = table.nodes.size();
  const std::uint32_t block_tokens = options_.geometry.block_tokens;
  const StripeIdentity identity{table.last_node(), tokens.hashes.cache_salt(),
                                tokens.tokens.subspan(index * block_tokens, block_tokens)};
  const BlockHash& hash = tokens.hashes.blocks()[index];
  const NodeId found = store_.tree().find(hash, identity);
  return found != kNoNode ? found : store_.publish(hash, identity);
}

/// The tree branches before the last of the table's published stripes: others may end their hits
/// there as well.
void KvCacheManager::anchor_branch(const Table& table) {
  const auto end = static_cast<std::uint32_t>(table.nodes.size()) - 1;
  const std::uint32_t position = end * options_.geometry.block_tokens;
  for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
    if (!is_windowed(group)) continue;
    for (std::uint32_t index = options_.geometry.first_visible_stripe(group, position); index < end;
         ++index) {
      store_.anchor(table.nodes[index], group);
    }
  }
}

/// The last of the table's nodes and its stripe become one: what the node has takes the place of
/// what was computed a second time, and what it lacks it is given.
void KvCacheManager::adopt(Table& table, NodeId node) {
  const auto index = static_cast<std::uint32_t>(table.nodes.size()) - 1;
  for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
    if (store_.tree().has(node, group)) {
      table.blocks.exchange(store_, group, index, store_.tree().stripe(node, group));
    } else {
      store_.attach(node, group, table.blocks.stripe(group, index));
    }
  }
}

void KvCacheManager::truncate(SequenceId id, std::uint32_t num_tokens) {
  Table& cut = table(id);
  const std::uint32_t keep = stripes_for(num_tokens);
  KVASIR_CHECK(keep >= cut.nodes.size(), num_tokens << " tokens cut into published stripes");
  for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
    KVASIR_CHECK(
        cut.blocks.first_held(group) <= options_.geometry.first_visible_stripe(group, num_tokens),
        num_tokens << " tokens are behind what group " << group << " holds");
  }
  while (cut.blocks.num_stripes() > keep) cut.blocks.pop(store_);
  cut.num_computed_tokens = std::min(cut.num_computed_tokens, num_tokens);
}

KvReceipt KvCacheManager::evict(SequenceId id, const HashedTokens& tokens) {
  Table& closed = table(id);
  KVASIR_CHECK(!closed.audit.has_value(), value_of(id) << " is an audit");
  keep_partial(closed, tokens);
  closed.blocks.close(store_);
  store_.leave(closed.last_node());
  const KvReceipt receipt = closed.blocks.receipt();
  tables_.erase(id);
  return receipt;
}

/// The tokens past the last full stripe are cached too, unless somebody else's stripe has them.
void KvCacheManager::keep_partial(const Table& table, const HashedTokens& tokens) {
  const std::uint32_t num_full = table.num_computed_tokens / options_.geometry.block_tokens;
  const std::uint32_t num_past = table.num_computed_tokens % options_.geometry.block_tokens;
  if (!options_.copies_partial_stripes || !tokens.hashes.is_enabled() || num_past == 0) return;
  // What is still to be copied is not there yet; what follows a cut chain cannot be found.
  if (table.copies() || !table.may_publish || table.nodes.size() != num_full) return;
  const StripeIdentity identity{
      table.last_node(), tokens.hashes.cache_salt(),
      tokens.tokens.subspan(std::size_t{num_full} * options_.geometry.block_tokens, num_past)};
  if (store_.tree().longest_shared(identity).tokens == num_past) return;
  const NodeId node = store_.publish_partial(identity);
  if (node == kNoNode) return;
  for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
    store_.attach(node, group, table.blocks.stripe(group, num_full));
  }
}

std::span<const BlockId> KvCacheManager::block_table(SequenceId id, std::size_t group) const {
  return table(id).blocks.blocks(group);
}

const KvReceipt& KvCacheManager::receipt(SequenceId id) const { return table(id).blocks.receipt(); }

KvCacheManager::Table& KvCacheManager::open(SequenceId id) {
  const auto [position, inserted] = tables_.try_emplace(id, options_.geometry);
  KVASIR_CHECK(inserted, "sequence " << value_of(id) << " is admitted already");
  return position->second;
}

const KvCacheManager::Table& KvCacheManager::table(SequenceId id) const {
  const auto found = tables_.find(id);
  KVASIR_CHECK(found != tables_.end(), "sequence " << value_of(id) << " has no blocks");
  return found->second;
}

KvCacheManager::Table& KvCacheManager::table(SequenceId id) {
  return const_cast<Table&>(std::as_const(*this).table(id));
}

void KvCacheManager::enter_nodes(Table& table, std::vector<NodeId> nodes) {
  table.nodes = std::move(nodes);
  store_.enter(table.last_node());
}

std::uint32_t KvCacheManager::stripes_for(std::uint32_t tokens) const {
  return static_cast<std::uint32_t>(options_.geometry.stripes_for(tokens));
}

bool KvCacheManager::is_windowed(std::size_t group) const {
  return options_.geometry.groups[group].window_tokens > 0;
}

}  // namespace kvasir::kvcache
