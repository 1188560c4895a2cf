// What the tests of the manager share: small geometries, and token lists with their hash chains.
#pragma once

#include "kvcache/kv_cache_manager.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvasir::kvcache::testing_kv {

inline constexpr std::uint32_t kSlots = 4;  // tokens of a block

/// A group of `num_layers` layers, one KV head each.
inline KvLayerGroup layers(std::uint32_t num_layers, std::uint32_t window_tokens) {
  return {
      .num_layers = num_layers, .num_kv_heads = 1, .head_dim = 8, .window_tokens = window_tokens};
}

inline KvCacheOptions cache_options(std::vector<KvLayerGroup> groups, std::uint32_t num_blocks,
                                    std::uint32_t largest_chunk = 512) {
  KvCacheOptions options;
  options.geometry.groups = std::move(groups);
  options.geometry.block_tokens = kSlots;
  options.geometry.largest_chunk = largest_chunk;
  options.num_blocks = num_blocks;
  options.copies_partial_stripes = true;
  return options;
}

/// A token list with its chain, as a sequence keeps them.
struct Text {
  std::vector<TokenId> tokens;
  HashChain chain;
  Text(const KvCacheManager& kv, std::vector<TokenId> list, std::uint64_t salt = 0)
      : tokens(std::move(list)), chain(kv.new_hash_chain(salt)) {
    chain.extend(tokens);
  }
  void append(TokenId token) {
    tokens.push_back(token);
    chain.extend(tokens);
  }
  [[nodiscard]] HashedTokens hashed() const { return {tokens, chain}; }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(tokens.size()); }
};

/// first, first + 1, ...
inline std::vector<TokenId> count_from(TokenId first, std::uint32_t count) {
  std::vector<TokenId> tokens;
  for (std::uint32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

inline std::vector<TokenId> joined(std::vector<TokenId> start, const std::vector<TokenId>& end) {
  start.insert(start.end(), end.begin(), end.end());
  return start;
}

inline std::uint32_t stripes_for(const KvCacheManager& kv, std::uint64_t tokens) {
  return static_cast<std::uint32_t>(kv.geometry().stripes_for(tokens));
}

/// Admits with `cached` tokens and computes all, in chunks of at most `chunk`.
inline void run(KvCacheManager& kv, SequenceId id, const Text& text, std::uint32_t cached,
                std::uint32_t chunk) {
  kv.admit(id, text.hashed(), cached);
  for (std::uint32_t done = cached; done < text.size();) {
    done = std::min(done + chunk, text.size());
    kv.grow(id, stripes_for(kv, done) - kv.num_stripes(id));
    kv.commit(id, text.hashed(), done);
    kv.check_integrity();
  }
}

/// The same with all that matches; returns the match.
inline PrefixMatch run(KvCacheManager& kv, SequenceId id, const Text& text) {
  const PrefixMatch match = kv.match_prefix(text.hashed());
  run(kv, id, text, match.tokens, kv.geometry().largest_chunk);
  return match;
}

}  // namespace kvasir::kvcache::testing_kv
