// Audits: cached stripes are computed again and compared, one after another. What is found wrong
// leaves the cache with everything that it may have come to.
#include "core/check.h"
#include "kvcache/kv_cache_manager.h"

#include <algorithm>
#include <utility>

namespace kvasir::kvcache {

bool KvCacheManager::open_audit(SequenceId id, const HashedTokens& tokens,
                                std::uint32_t num_tokens) {
  KVASIR_CHECK(num_tokens <= tokens.tokens.size(), num_tokens << " of " << tokens.tokens.size());
  if (!tokens.hashes.is_enabled() || num_tokens == 0) return false;
  const std::uint32_t num_full = num_tokens / options_.geometry.block_tokens;
  const std::uint32_t num_past = num_tokens % options_.geometry.block_tokens;
  std::vector<NodeId> nodes = cached_chain(store_.tree(), tokens, num_full);
  if (nodes.size() < num_full) return false;
  if (num_past > 0) {
    const NodeId last = nodes.empty() ? kNoNode : nodes.back();
    const PrefixTree::Shared partial =
        copy_source(store_.tree(), tokens, last, num_full, num_tokens);
    if (partial.tokens < num_past) return false;
    nodes.push_back(partial.node);
  }
  Table& opened = open(id);
  ++num_audits_;
  Audit audit;
  audit.num_tokens = num_tokens;
  opened.audit = audit;
  opened.may_publish = false;
  for (const NodeId node : nodes) {
    for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
      if (!is_windowed(group)) {
        opened.blocks.pin(store_, group, store_.tree().stripe(node, group));
      }
    }
  }
  enter_nodes(opened, std::move(nodes));
  return true;
}

std::optional<AuditStep> KvCacheManager::next_audit_step(SequenceId id) {
  Table& audited = table(id);
  KVASIR_CHECK(audited.audit && !audited.audit->in_step, value_of(id) << " is in no audit's pause");
  const std::uint32_t first = audited.num_computed_tokens;
  if (first >= audited.audit->num_tokens) audited.audit->over = true;
  if (num_free_blocks() < options_.geometry.blocks_per_stripes()) audited.audit->over = true;
  if (audited.audit->over) return std::nullopt;

  audited.audit->in_step = true;
  const std::uint32_t index = audited.blocks.num_stripes();
  const NodeId node = audited.nodes[index];
  AuditStep step;
  step.first_position = first;
  step.num_tokens = std::min(options_.geometry.block_tokens, audited.audit->num_tokens - first);
  // Pinned before room is made, so that what is to be compared is not what gives way; but only
  // where there is room for both.
  std::uint32_t room = num_free_blocks() - options_.geometry.blocks_per_stripes();
  for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
    const std::span<const BlockId> stripe = store_.tree().stripe(node, group);
    if (!is_windowed(group) || stripe.empty()) continue;
    if (stripe.size() > room) {
      step.leaves_some_out = true;
      continue;
    }
    room -= static_cast<std::uint32_t>(stripe.size());
    audited.blocks.pin(store_, group, stripe);
  }
  audited.blocks.grow(store_);
  for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
    if (is_windowed(group) && audited.blocks.pinned(group).empty()) continue;
    const std::span<const BlockId> cached = store_.tree().stripe(node, group);
    const std::span<const BlockId> fresh = audited.blocks.stripe(group, index);
    for (std::size_t i = 0; i < fresh.size(); ++i) step.pairs.push_back({cached[i], fresh[i]});
  }
  return step;
}

void KvCacheManager::end_audit_step(SequenceId id, bool equal) {
  Table& audited = table(id);
  KVASIR_CHECK(audited.audit && audited.audit->in_step, value_of(id)
                                                            << " is in no step of an audit");
  audited.audit->in_step = false;
  const KvGeometry& geometry = options_.geometry;
  const std::uint32_t index = audited.blocks.num_stripes() - 1;
  for (std::size_t group = 0; group < geometry.groups.size(); ++group) {
    if (is_windowed(group)) audited.blocks.unpin(store_, group);
  }
  // Somebody else's audit may have dropped what this one compares.
  if (audited.nodes.size() <= index) return;
  const NodeId node = audited.nodes[index];
  if (!equal) {
    drop_doubtful(node);
    return;
  }
  audited.num_computed_tokens =
      std::min(audited.audit->num_tokens, (index + 1) * geometry.block_tokens);
  if (!store_.tree().is_full(node) || audited.num_computed_tokens % geometry.block_tokens != 0) {
    return;  // the last one
  }
  for (std::size_t group = 0; group < geometry.groups.size(); ++group) {
    if (is_windowed(group)) {
      audited.blocks.slide(store_, group,
                           geometry.first_visible_stripe(group, audited.num_computed_tokens));
    } else {
      audited.blocks.exchange(store_, group, index, store_.tree().stripe(node, group));
    }
  }
}

void KvCacheManager::close_audit(SequenceId id) {
  Table& closed = table(id);
  KVASIR_CHECK(closed.audit.has_value(), value_of(id) << " is no audit");
  closed.blocks.close(store_);
  store_.leave(closed.last_node());
  tables_.erase(id);
  --num_audits_;
}

/// A stripe that begins with the same token may be a copy of this one, or this one of it.
void KvCacheManager::drop_doubtful(NodeId node) {
  const std::uint32_t depth = store_.tree().depth(node);
  const NodeId parent = store_.tree().parent(node);
  for (auto& [id, other] : tables_) {
    const bool began_here = other.copied_stripe == depth && other.nodes.size() == depth;
    if (began_here && other.last_node() == parent) other.may_publish = false;
  }
  const std::vector<NodeId> doubtful = doubtful_with(node);
  store_.enter(parent);  // so that it is not erased from below
  for (const NodeId dropped : doubtful) drop(dropped);
  store_.leave(parent);
}

/// Walks all nodes, for it happens when memory or code is broken.
std::vector<NodeId> KvCacheManager::doubtful_with(NodeId node) const {
  const PrefixTree& tree = store_.tree();
  std::vector<NodeId> doubtful;
  for (std::uint32_t i = 0; i < tree.end_of_ids(); ++i) {
    const NodeId other{i};
    if (tree.contains(other) && tree.parent(other) == tree.parent(node) &&
        tree.cache_salt(other) == tree.cache_salt(node) &&
        tree.tokens(other).front() == tree.tokens(node).front()) {
      doubtful.push_back(other);
    }
  }
  return doubtful;
}

void KvCacheManager::drop(NodeId node) {
  const std::uint32_t depth = store_.tree().depth(node);
  store_.enter(node);
  for (auto& [id, other] : tables_) {
    if (other.nodes.size() <= depth || other.nodes[depth] != node) continue;
    const NodeId last = other.last_node();
    other.nodes.resize(depth);
    other.may_publish = false;
    if (other.audit) other.audit->over = true;
    store_.enter(other.last_node());
    store_.leave(last);
  }
  store_.drop(node);
}

}  // namespace kvasir::kvcache
