// The two lanes of the block hash. Nothing here needs to resist an attacker: a hit compares the
// tokens themselves.
#include "kvcache/block_hash.h"

#include "core/check.h"
#include "core/rng.h"

namespace kvasir::kvcache {
namespace {

/// Absorbs 64-bit words into two lanes that share no constant and no operation but addition and
/// xor.
class TwoLanes {
 public:
  explicit TwoLanes(const BlockHash& start) : high_(start.high), low_(start.low) {}

  void absorb(std::uint64_t word) {
    high_ = mix64(high_ ^ word);
    low_ =
        (low_ ^ word) * 0xff51afd7ed558ccdULL;  // the multipliers of MurmurHash3's 64-bit finaliser
    low_ ^= low_ >> 32;
    low_ = low_ * 0xc4ceb9fe1a85ec53ULL + 0x52dce729ULL;
    low_ ^= low_ >> 29;
  }
  /// A field: its length in words, then the words.
  void absorb_field(std::uint64_t word) {
    absorb(1);
    absorb(word);
  }
  [[nodiscard]] BlockHash finish() {
    absorb(0x6b76);  // so that the last word passes through both lanes twice
    return {high_, low_};
  }

 private:
  std::uint64_t high_;
  std::uint64_t low_;
};

}  // namespace

BlockHash hash_domain(const CacheDomain& domain) {
  TwoLanes lanes(
      {0x243f6a8885a308d3ULL, 0x13198a2e03707344ULL});  // digits of pi: any fixed start will do
  lanes.absorb_field(domain.model_hash);
  lanes.absorb_field(static_cast<std::uint64_t>(domain.type));
  lanes.absorb_field(domain.cache_salt);
  return lanes.finish();
}

BlockHash hash_block(const BlockHash& parent, std::span<const TokenId> tokens) {
  TwoLanes lanes(parent);
  lanes.absorb(tokens.size());
  std::size_t i = 0;
  for (; i + 1 < tokens.size(); i += 2) {
    lanes.absorb(std::uint64_t{tokens[i]} << 32 | tokens[i + 1]);
  }
  if (i < tokens.size()) lanes.absorb(tokens[i]);
  return lanes.finish();
}

HashChain::HashChain(const CacheDomain& domain, std::uint32_t block_tokens, BlockHashFn hash)
    : root_(hash_domain(domain)),
      block_tokens_(block_tokens),
      cache_salt_(domain.cache_salt),
      hash_(hash) {
  KVASIR_CHECK(block_tokens >= 1);
}

void HashChain::extend(std::span<const TokenId> tokens) {
  if (block_tokens_ == 0) return;
  const std::size_t num_full = tokens.size() / block_tokens_;
  hashes_.reserve(num_full);
  while (hashes_.size() < num_full) {
    const BlockHash& parent = hashes_.empty() ? root_ : hashes_.back();
    hashes_.push_back(hash_(parent, tokens.subspan(hashes_.size() * block_tokens_, block_tokens_)));
  }
}

}  // namespace kvasir::kvcache
