// What must hold between tables, blocks and the tree, checked from scratch: slow, for tests and the
// simulator, but for check_may_write(), which guards every step.
#include "core/check.h"
#include "kvcache/kv_cache_manager.h"

#include <optional>
#include <vector>

namespace kvasir::kvcache {

void KvCacheManager::check_may_write(SequenceId id, std::uint32_t num_tokens) const {
  const Table& written = table(id);
  const std::uint32_t end = stripes_for(written.num_computed_tokens + num_tokens);
  KVASIR_CHECK(end <= written.blocks.num_stripes(),
               end << " stripes wanted, " << written.blocks.num_stripes() << " held");
  for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
    for (std::uint32_t index = written.num_computed_tokens / options_.geometry.block_tokens;
         index < end; ++index) {
      for (const BlockId block : written.blocks.stripe(group, index)) {
        KVASIR_CHECK(references(block) == 1, "block " << value_of(block) << " of sequence "
                                                      << value_of(id) << " is shared");
        KVASIR_CHECK(!is_published(block), "block " << value_of(block) << " of sequence "
                                                    << value_of(id) << " is published");
      }
    }
  }
}

void KvCacheManager::check_integrity() const {
  std::vector<std::uint32_t> held(num_blocks(), 0);
  std::vector<std::uint32_t> users(store_.tree().end_of_ids(), 0);
  for (const auto& [id, checked] : tables_) {
    checked.blocks.count_references(held);
    check_table(id, checked);
    if (!checked.nodes.empty()) ++users[value_of(checked.nodes.back())];
  }
  store_.check_integrity(held);
  for (std::uint32_t i = 0; i < store_.tree().end_of_ids(); ++i) {
    KVASIR_CHECK(store_.num_users(NodeId{i}) == users[i], "node " << i);
  }
  check_sharing();
}

/// What the table holds is what its nodes hold, as far as it has some, and its own past them.
void KvCacheManager::check_table(SequenceId id, const Table& checked) const {
  check_nodes(id, checked);
  const KvGeometry& geometry = options_.geometry;
  const std::uint32_t pending = checked.copies() ? 1 : 0;  // the stripe that is copied into
  KVASIR_CHECK(stripes_for(checked.num_computed_tokens) <= checked.blocks.num_stripes() + pending,
               "sequence " << value_of(id) << " has computed more than it holds");
  for (std::size_t group = 0; group < geometry.groups.size(); ++group) {
    const std::uint32_t first = checked.blocks.first_held(group);
    KVASIR_CHECK(first <= geometry.first_visible_stripe(group, checked.num_computed_tokens),
                 "sequence " << value_of(id) << " lacks what its next query sees");
    for (std::uint32_t index = first; index < checked.blocks.num_stripes(); ++index) {
      const NodeId owner = expected_owner(checked, group, index);
      for (const BlockId block : checked.blocks.stripe(group, index)) {
        KVASIR_CHECK(store_.owner(block) == owner,
                     "stripe " << index << " of sequence " << value_of(id));
      }
    }
  }
  const std::uint64_t most =
      geometry.blocks_for(std::uint64_t{checked.blocks.num_stripes()} * geometry.block_tokens);
  KVASIR_CHECK(checked.blocks.num_held() <= most, checked.blocks.num_held() << " of " << most);
}

/// They are a path of the tree from its root.
void KvCacheManager::check_nodes(SequenceId id, const Table& checked) const {
  KVASIR_CHECK(checked.audit || checked.nodes.size() <= checked.blocks.num_stripes());
  for (std::size_t index = 0; index < checked.nodes.size(); ++index) {
    const NodeId before = index == 0 ? kNoNode : checked.nodes[index - 1];
    KVASIR_CHECK(store_.tree().parent(checked.nodes[index]) == before,
                 "node " << index << " of sequence " << value_of(id) << " has another parent");
  }
}

NodeId KvCacheManager::expected_owner(const Table& checked, std::size_t group,
                                      std::uint32_t index) const {
  if (index >= checked.nodes.size()) return kNoNode;
  if (!checked.audit) return checked.nodes[index];
  const bool compared = index < checked.num_computed_tokens / options_.geometry.block_tokens;
  return compared && !is_windowed(group) ? checked.nodes[index] : kNoNode;
}

/// A block in several tables is at the same place in each, after the same blocks, and nothing in it
/// is still to be computed.
void KvCacheManager::check_sharing() const {
  struct Place {
    std::size_t group = 0;
    std::uint32_t index = 0;
    std::optional<BlockId> before;  // where the table still holds it
  };
  std::vector<std::optional<Place>> places(num_blocks());
  for (const auto& [id, checked] : tables_) {
    for (std::size_t group = 0; group < options_.geometry.groups.size(); ++group) {
      for (std::uint32_t index = checked.blocks.first_held(group);
           index < checked.blocks.num_stripes(); ++index) {
        const BlockId block = checked.blocks.stripe(group, index).front();
        if (references(block) < 2) continue;
        KVASIR_CHECK(
            (std::uint64_t{index} + 1) * options_.geometry.block_tokens <=
                checked.num_computed_tokens,
            "stripe " << index << " of sequence " << value_of(id) << " is shared and not full");
        std::optional<BlockId> before;
        if (checked.blocks.holds(group, index - 1)) {
          before = checked.blocks.stripe(group, index - 1).front();
        }
        std::optional<Place>& place = places[value_of(block)];
        if (!place) place = Place{group, index, before};
        if (!place->before) place->before = before;
        KVASIR_CHECK(
            place->group == group && place->index == index && (!before || place->before == before),
            "block " << value_of(block) << " follows other blocks in sequence " << value_of(id));
      }
    }
  }
}

}  // namespace kvasir::kvcache
