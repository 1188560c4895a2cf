// Tables over the pool and the prefix cache. Two rules make a published parent outlive its
// children: every table that holds a block holds all blocks of the prefix before it, and tables are
// released from their end.
#include "kvcache/kv_cache_manager.h"

#include "core/check.h"

#include <algorithm>
#include <utility>

namespace kvasir::kvcache {

KvCacheManager::KvCacheManager(const KvCacheOptions& options)
    : options_(options),
      pool_(options.num_blocks),
      cache_(options.prefix_cache_enabled ? options.num_blocks : 0, options.geometry.block_tokens) {
  KVASIR_CHECK(options.num_blocks >= 1);
  // Groups with windows of their own would each need a table and a charge of their own; see
  // kv_storage.cpp.
  KVASIR_CHECK(options.geometry.groups.size() <= 1, options.geometry.groups.size()
                                                        << " layer groups");
}

std::uint32_t KvCacheManager::blocks_held(SequenceId id) const {
  const auto found = tables_.find(id);
  return found == tables_.end() ? 0 : static_cast<std::uint32_t>(found->second.blocks.size());
}

std::uint32_t KvCacheManager::num_stripes(SequenceId id) const { return blocks_held(id); }

std::uint32_t KvCacheManager::shared_window_blocks() const { return 0; }

bool KvCacheManager::can_fork(SequenceId source, std::uint32_t num_tokens) const {
  return table(source).num_computed_tokens >= num_tokens;
}

std::uint32_t KvCacheManager::blocks_freed_by_evicting(SequenceId id) const {
  const auto found = tables_.find(id);
  if (found == tables_.end()) return 0;
  return static_cast<std::uint32_t>(std::ranges::count_if(
      found->second.blocks, [this](BlockId block) { return pool_.references(block) == 1; }));
}

PrefixMatch KvCacheManager::match_prefix(const HashedTokens& tokens) const {
  PrefixMatch match;
  std::optional<BlockId> parent;
  for (const std::uint32_t limit = matchable_blocks(tokens); match.stripes < limit;
       ++match.stripes) {
    const std::optional<BlockId> block = cache_.find(identity(tokens, match.stripes, parent));
    if (!block) break;
    if (pool_.references(*block) > 0) ++match.live_blocks;
    parent = block;
  }
  match.tokens = match.stripes * options_.geometry.block_tokens;
  return match;
}

HashChain KvCacheManager::new_hash_chain(std::uint64_t cache_salt) const {
  if (!options_.prefix_cache_enabled) return {};
  return {{options_.model_hash, options_.geometry.type, cache_salt},
          options_.geometry.block_tokens,
          options_.hash};
}

void KvCacheManager::admit(SequenceId id, const HashedTokens& tokens, std::uint32_t cached_tokens) {
  KVASIR_CHECK(cached_tokens % options_.geometry.block_tokens == 0, cached_tokens << " tokens");
  const std::uint32_t num_cached = cached_tokens / options_.geometry.block_tokens;
  KVASIR_CHECK(num_cached <= matchable_blocks(tokens), num_cached << " blocks are the whole list");

  Table& opened = open(id);
  opened.blocks.reserve(options_.geometry.blocks_for(tokens.tokens.size()));
  std::optional<BlockId> parent;
  for (std::uint32_t i = 0; i < num_cached; ++i) {
    const std::optional<BlockId> block = cache_.find(identity(tokens, i, parent));
    KVASIR_CHECK(block.has_value(), "block " << i << " of the promised prefix is not cached");
    pin(*block);
    opened.blocks.push_back(*block);
    parent = block;
  }
  opened.num_published = num_cached;
  opened.num_computed_tokens = cached_tokens;
}

void KvCacheManager::fork(SequenceId id, SequenceId source, std::uint32_t num_tokens) {
  Table& forked = open(id);
  const Table& shared = table(source);
  KVASIR_CHECK(num_tokens >= 1);
  KVASIR_CHECK(num_tokens <= shared.num_computed_tokens,
               num_tokens << " tokens of sequence " << value_of(source) << ", which has computed "
                          << shared.num_computed_tokens);
  const std::uint32_t num_full = num_tokens / options_.geometry.block_tokens;
  for (std::uint32_t i = 0; i < num_full; ++i) {
    pool_.reference(shared.blocks[i]);
    forked.blocks.push_back(shared.blocks[i]);
  }
  forked.num_published = std::min(num_full, shared.num_published);
  // Where a collision has cut the source's chain, this one's is cut too.
  forked.may_publish = forked.num_published == num_full;
  forked.num_computed_tokens = num_tokens;
  if (num_tokens % options_.geometry.block_tokens != 0)
    forked.copy_source = shared.blocks[num_full];
}

std::vector<BlockCopy> KvCacheManager::copies(SequenceId id) const {
  const Table& copied = table(id);
  if (!copied.copy_source) return {};
  const std::uint32_t index = copied.num_computed_tokens / options_.geometry.block_tokens;
  KVASIR_CHECK(index < copied.blocks.size(), "sequence " << value_of(id) << " has not grown");
  return {{*copied.copy_source, copied.blocks[index],
           copied.num_computed_tokens % options_.geometry.block_tokens}};
}

void KvCacheManager::grow(SequenceId id, std::uint32_t num_new_blocks) {
  Table& grown = table(id);
  KVASIR_CHECK(num_new_blocks <= num_free_blocks(),
               num_new_blocks << " blocks wanted, " << num_free_blocks() << " free");
  for (std::uint32_t i = 0; i < num_new_blocks; ++i) {
    const BlockId block = pool_.allocate();
    if (is_published(block)) {  // reclaimed
      cache_.erase(block);
      --num_cached_;
    }
    grown.blocks.push_back(block);
  }
}

void KvCacheManager::commit(SequenceId id, const HashedTokens& tokens,
                            std::uint32_t num_computed_tokens) {
  Table& committed = table(id);
  KVASIR_CHECK(num_computed_tokens <= tokens.tokens.size(),
               num_computed_tokens << " of " << tokens.tokens.size() << " known tokens");
  KVASIR_CHECK(options_.geometry.blocks_for(num_computed_tokens) <= committed.blocks.size(),
               num_computed_tokens << " tokens in " << committed.blocks.size() << " blocks");
  KVASIR_CHECK(num_computed_tokens >= committed.num_computed_tokens,
               num_computed_tokens << " after " << committed.num_computed_tokens);
  committed.num_computed_tokens = num_computed_tokens;
  committed.copy_source.reset();
  if (!options_.prefix_cache_enabled) return;
  publish(committed, tokens, num_computed_tokens / options_.geometry.block_tokens);
}

void KvCacheManager::publish(Table& table, const HashedTokens& tokens,
                             std::uint32_t num_full_blocks) {
  while (table.may_publish && table.num_published < num_full_blocks) {
    const std::uint32_t index = table.num_published;
    const BlockId own = table.blocks[index];
    const BlockIdentity content =
        identity(tokens, index, index == 0 ? std::nullopt : std::optional(table.blocks[index - 1]));
    if (const std::optional<BlockId> twin = cache_.find(content)) {
      pin(*twin);
      table.blocks[index] = *twin;
      release(own);
    } else if (!cache_.insert(own, content)) {
      table.may_publish =
          false;  // a collision: without this block its children cannot be found either
      return;
    }
    ++table.num_published;
  }
}

void KvCacheManager::truncate(SequenceId id, std::uint32_t num_tokens) {
  Table& cut = table(id);
  const std::uint64_t keep = options_.geometry.blocks_for(num_tokens);
  KVASIR_CHECK(keep >= cut.num_published, num_tokens << " tokens cut into published blocks");
  while (cut.blocks.size() > keep) {
    release(cut.blocks.back());
    cut.blocks.pop_back();
  }
  cut.num_computed_tokens = std::min(cut.num_computed_tokens, num_tokens);
}

KvReceipt KvCacheManager::evict(SequenceId id, const HashedTokens&) {
  Table& closed = table(id);
  // From the end, so that among cached blocks a child is always reclaimed before its parent.
  for (std::size_t i = closed.blocks.size(); i > 0; --i) release(closed.blocks[i - 1]);
  const KvReceipt receipt = closed.receipt;
  tables_.erase(id);
  return receipt;
}

std::span<const BlockId> KvCacheManager::block_table(SequenceId id, std::size_t group) const {
  KVASIR_CHECK(group < options_.geometry.groups.size());
  return table(id).blocks;
}

const KvReceipt& KvCacheManager::receipt(SequenceId id) const { return table(id).receipt; }

void KvCacheManager::check_may_write(SequenceId id, std::uint32_t num_tokens) const {
  const Table& written = table(id);
  const std::uint32_t end = written.num_computed_tokens + num_tokens;
  const std::uint64_t end_block = options_.geometry.blocks_for(end);
  KVASIR_CHECK(end_block <= written.blocks.size(),
               end << " tokens in " << written.blocks.size() << " blocks");
  for (std::uint64_t i = written.num_computed_tokens / options_.geometry.block_tokens;
       i < end_block; ++i) {
    const BlockId block = written.blocks[i];
    KVASIR_CHECK(pool_.references(block) == 1,
                 "block " << value_of(block) << " of sequence " << value_of(id) << " is shared");
    KVASIR_CHECK(!is_published(block),
                 "block " << value_of(block) << " of sequence " << value_of(id) << " is published");
  }
}

void KvCacheManager::check_integrity() const {
  check_sharing();
  std::vector<std::uint32_t> held(num_blocks(), 0);
  for (const auto& [id, checked] : tables_) {
    KVASIR_CHECK(checked.num_published <= checked.blocks.size());
    for (std::size_t i = 0; i < checked.blocks.size(); ++i) {
      ++held[value_of(checked.blocks[i])];
      const bool published = is_published(checked.blocks[i]);
      KVASIR_CHECK(published == (i < checked.num_published),
                   "block " << i << " of sequence " << value_of(id));
      if (i > 0 && published) {
        KVASIR_CHECK(cache_.parent(checked.blocks[i]) == checked.blocks[i - 1],
                     "block " << i << " of sequence " << value_of(id) << " has another parent");
      }
    }
  }
  std::uint32_t num_live = 0;
  std::uint32_t num_cached = 0;
  std::uint32_t num_published = 0;
  for (std::uint32_t i = 0; i < num_blocks(); ++i) {
    const BlockId block{i};
    KVASIR_CHECK(pool_.references(block) == held[i],
                 "block " << i << ": " << pool_.references(block) << " references, in " << held[i]
                          << " tables");
    num_live += held[i] > 0 ? 1 : 0;
    if (!is_published(block)) continue;
    ++num_published;
    num_cached += held[i] == 0 ? 1 : 0;
    const std::optional<BlockId> parent = cache_.parent(block);
    KVASIR_CHECK(!parent || is_published(*parent), "block " << i << " has lost its parent");
  }
  KVASIR_CHECK(pool_.count_free_list() == num_free_blocks());
  KVASIR_CHECK(num_live + num_free_blocks() == num_blocks(),
               num_live << " live, " << num_free_blocks() << " free of " << num_blocks());
  KVASIR_CHECK(num_cached == num_cached_, num_cached << " cached, counted " << num_cached_);
  KVASIR_CHECK(num_published == cache_.size());
}

/// A block in several tables is at the same place in each, after the same blocks, and nothing in it
/// is still to be computed.
void KvCacheManager::check_sharing() const {
  struct Place {
    std::uint64_t index = 0;
    std::optional<BlockId> before;
  };
  std::vector<std::optional<Place>> places(num_blocks());
  for (const auto& [id, checked] : tables_) {
    for (std::uint64_t i = 0; i < checked.blocks.size(); ++i) {
      const BlockId block = checked.blocks[i];
      if (references(block) < 2) continue;
      const std::optional<BlockId> before =
          i == 0 ? std::nullopt : std::optional(checked.blocks[i - 1]);
      KVASIR_CHECK((i + 1) * options_.geometry.block_tokens <= checked.num_computed_tokens,
                   "block " << i << " of sequence " << value_of(id) << " is shared and not full");
      std::optional<Place>& place = places[value_of(block)];
      if (!place) place = Place{i, before};
      KVASIR_CHECK(
          place->index == i && place->before == before,
          "block " << value_of(block) << " follows other blocks in sequence " << value_of(id));
    }
  }
}

KvCacheManager::Table& KvCacheManager::open(SequenceId id) {
  const auto [position, inserted] = tables_.try_emplace(id);
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

BlockIdentity KvCacheManager::identity(const HashedTokens& tokens, std::uint32_t index,
                                       std::optional<BlockId> parent) const {
  const std::uint32_t block_tokens = options_.geometry.block_tokens;
  return {tokens.hashes.blocks()[index], parent, tokens.hashes.cache_salt(),
          tokens.tokens.subspan(std::size_t{index} * block_tokens, block_tokens)};
}

std::uint32_t KvCacheManager::matchable_blocks(const HashedTokens& tokens) const {
  if (tokens.tokens.empty()) return 0;
  const std::size_t before_last = (tokens.tokens.size() - 1) / options_.geometry.block_tokens;
  return static_cast<std::uint32_t>(std::min(before_last, tokens.hashes.blocks().size()));
}

void KvCacheManager::pin(BlockId block) {
  if (pool_.references(block) == 0) --num_cached_;
  pool_.reference(block);
}

void KvCacheManager::release(BlockId block) {
  const bool published = is_published(block);
  pool_.release(block, published ? BlockPool::Content::kKeep : BlockPool::Content::kDrop);
  if (published && pool_.references(block) == 0) ++num_cached_;
}

}  // namespace kvasir::kvcache
