// The hash finds one candidate; the comparison decides.
#include "kvcache/prefix_cache.h"

#include "core/check.h"

#include <algorithm>

namespace kvasir::kvcache {

PrefixCache::PrefixCache(std::uint32_t num_blocks, std::uint32_t block_tokens)
    : block_tokens_(block_tokens),
      entries_(num_blocks),
      tokens_(std::size_t{num_blocks} * block_tokens) {
  by_hash_.reserve(num_blocks);
}

std::optional<BlockId> PrefixCache::find(const BlockIdentity& wanted) const {
  const auto found = by_hash_.find(wanted.hash);
  if (found == by_hash_.end()) return std::nullopt;
  const BlockId block = found->second;
  const Entry& entry = entries_[value_of(block)];
  // Equal parents stand for equal prefixes: a parent stays published, and so unchanged, while it
  // has children.
  const bool same = entry.parent == wanted.parent && entry.cache_salt == wanted.cache_salt &&
                    std::ranges::equal(tokens_of(block), wanted.tokens);
  return same ? std::optional(block) : std::nullopt;
}

bool PrefixCache::insert(BlockId block, const BlockIdentity& identity) {
  Entry& entry = entries_[value_of(block)];
  KVASIR_CHECK(!entry.published, "block " << value_of(block) << " is published already");
  KVASIR_CHECK(identity.tokens.size() == block_tokens_, "only full blocks are published");
  if (!by_hash_.emplace(identity.hash, block).second) return false;
  if (identity.parent) {
    Entry& parent = entries_[value_of(*identity.parent)];
    KVASIR_CHECK(parent.published, "the parent of a published block is not");
    ++parent.num_children;
  }
  entry = {identity.hash, identity.parent, identity.cache_salt, 0, true};
  std::ranges::copy(identity.tokens,
                    tokens_.begin() + std::ptrdiff_t{value_of(block)} * block_tokens_);
  return true;
}

void PrefixCache::erase(BlockId block) {
  Entry& entry = entries_[value_of(block)];
  KVASIR_CHECK(entry.published, "block " << value_of(block) << " is not published");
  KVASIR_CHECK(entry.num_children == 0, "a parent is reclaimed before its children");
  if (entry.parent) --entries_[value_of(*entry.parent)].num_children;
  by_hash_.erase(entry.hash);
  entry.published = false;
}

bool PrefixCache::contains(BlockId block) const {
  return value_of(block) < entries_.size() && entries_[value_of(block)].published;
}

std::optional<BlockId> PrefixCache::parent(BlockId block) const {
  return entries_[value_of(block)].parent;
}

std::span<const TokenId> PrefixCache::tokens_of(BlockId block) const {
  return std::span(tokens_).subspan(std::size_t{value_of(block)} * block_tokens_, block_tokens_);
}

}  // namespace kvasir::kvcache
