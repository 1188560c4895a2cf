// Forks: which blocks two tables share, which one is copied, and that whatever happens to either of
// them afterwards neither finds a value that is not its own. Blocks have four tokens.
#include "core/rng.h"
#include "kvcache/kv_cache_manager.h"
#include "tests/support/aborts.h"
#include "tests/support/catch.h"

#include <iterator>
#include <map>
#include <optional>
#include <vector>

namespace kvasir::kvcache {
namespace {

constexpr SequenceId kLeader{1};
constexpr SequenceId kFork{2};
constexpr SequenceId kThird{3};
constexpr std::uint32_t kSlots = 4;

/// Two names for all blocks in the world: chains are cut almost at once.
BlockHash weak_hash(const BlockHash& parent, std::span<const TokenId> tokens) {
  return {0, hash_block(parent, tokens).low % 2};
}

KvCacheOptions options(std::uint32_t num_blocks, bool prefix_cache = true) {
  KvCacheOptions options;
  options.geometry.groups = {
      {.num_layers = 1, .num_kv_heads = 1, .head_dim = 8, .window_tokens = 0}};
  options.geometry.block_tokens = kSlots;
  options.num_blocks = num_blocks;
  options.prefix_cache_enabled = prefix_cache;
  return options;
}

struct Text {
  std::vector<TokenId> tokens;
  HashChain chain;
  Text(const KvCacheManager& kv, std::vector<TokenId> list)
      : tokens(std::move(list)), chain(kv.new_hash_chain(0)) {
    chain.extend(tokens);
  }
  void append(TokenId token) {
    tokens.push_back(token);
    chain.extend(tokens);
  }
  [[nodiscard]] HashedTokens hashed() const { return {tokens, chain}; }
};

std::vector<TokenId> count_to(TokenId end) {
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < end; ++token) tokens.push_back(token);
  return tokens;
}

std::optional<BlockCopy> one_copy(const KvCacheManager& kv, SequenceId id) {
  const std::vector<BlockCopy> copies = kv.copies(id);
  return copies.empty() ? std::nullopt : std::optional(copies.front());
}

void evict(KvCacheManager& kv, SequenceId id) { (void)kv.evict(id, {{}, HashChain()}); }

std::uint32_t blocks_for(const KvCacheManager& kv, std::size_t tokens) {
  return static_cast<std::uint32_t>(kv.geometry().blocks_for(tokens));
}

/// Computes all tokens from none.
void compute(KvCacheManager& kv, SequenceId id, const Text& text) {
  kv.admit(id, text.hashed(), 0);
  kv.grow(id, blocks_for(kv, text.tokens.size()));
  kv.commit(id, text.hashed(), static_cast<std::uint32_t>(text.tokens.size()));
}

/// Random sequences that start, fork, grow and end, and a shadow of what every slot holds.
class RandomForks {
 public:
  explicit RandomForks(std::uint64_t seed)
      : seed_(seed), kv_(make_options()), slots_(std::size_t{kv_.num_blocks()} * kSlots) {}

  void act() {
    const std::uint32_t action = below(10);
    auto chosen = live_.begin();
    if (!live_.empty()) std::advance(chosen, below(live_.size()));
    if (live_.empty() || action == 0) {
      start();
    } else if (action <= 3 && chosen->second.computed > 0) {
      fork(chosen->first, chosen->second);
    } else if (action <= 7) {
      compute(SequenceId{chosen->first}, chosen->second, 1 + below(6));
    } else {
      evict(kv_, SequenceId{chosen->first});
      live_.erase(chosen);
    }
  }

  /// Everybody finds what it has computed.
  void check() {
    kv_.check_integrity();
    for (const auto& [id, one] : live_) {
      for (std::uint32_t p = 0; p < one.computed; ++p) {
        REQUIRE(slot(SequenceId{id}, p) == one.text.tokens[p]);
      }
    }
  }

  void end_all() {
    for (const auto& [id, one] : live_) evict(kv_, SequenceId{id});
    live_.clear();
    kv_.check_integrity();
    CHECK(kv_.num_free_blocks() == kv_.num_blocks());
  }

 private:
  struct Live {
    Text text;
    std::uint32_t computed = 0;
  };

  std::uint32_t below(std::size_t bound) {
    return static_cast<std::uint32_t>(mix64(seed_ * 1'000'003 + draws_++) % bound);
  }

  KvCacheOptions make_options() {
    KvCacheOptions made = options(12 + below(30), below(3) > 0);
    if (below(3) == 0) made.hash = weak_hash;
    return made;
  }

  TokenId& slot_of(BlockId block, std::uint32_t index) {
    return slots_[std::size_t{value_of(block)} * kSlots + index];
  }
  TokenId& slot(SequenceId id, std::uint32_t position) {
    return slot_of(kv_.block_table(id)[position / kSlots], position % kSlots);
  }

  void start() {
    const SequenceId id{++last_id_};
    Live& one = live_.emplace(last_id_, Live{Text(kv_, {})}).first->second;
    kv_.admit(id, one.text.hashed(), 0);
    compute(id, one, 1 + below(9));
  }

  void fork(std::uint64_t source, const Live& from) {
    const std::uint32_t tokens = 1 + below(from.computed);
    if (blocks_for(kv_, tokens) - tokens / kSlots > kv_.num_free_blocks()) return;
    const SequenceId id{++last_id_};
    const auto first = from.text.tokens.begin();
    live_.emplace(last_id_, Live{Text(kv_, {first, first + tokens}), tokens});
    kv_.fork(id, SequenceId{source}, tokens);
    kv_.grow(id, blocks_for(kv_, tokens) - kv_.blocks_held(id));
    const std::optional<BlockCopy> copy = one_copy(kv_, id);
    if (!copy) return;
    for (std::uint32_t i = 0; i < copy->num_tokens; ++i) {
      slot_of(copy->destination, i) = slot_of(copy->source, i);
    }
  }

  /// What a step does with one sequence: room, writing, commit. Nothing when there is no room.
  void compute(SequenceId id, Live& one, std::uint32_t count) {
    const std::uint32_t end = one.computed + count;
    const std::uint32_t room = blocks_for(kv_, end);
    if (room > kv_.blocks_held(id) + kv_.num_free_blocks()) return;
    while (one.text.tokens.size() < end) one.text.append(below(2));
    kv_.grow(id, room - kv_.blocks_held(id));
    kv_.check_may_write(id, count);
    for (std::uint32_t p = one.computed; p < end; ++p) slot(id, p) = one.text.tokens[p];
    kv_.commit(id, one.text.hashed(), end);
    one.computed = end;
  }

  std::uint64_t seed_;
  std::uint64_t draws_ = 0;
  std::uint64_t last_id_ = 0;
  KvCacheManager kv_;
  std::map<std::uint64_t, Live> live_;
  std::vector<TokenId> slots_;  // [num_blocks][kSlots]
};

}  // namespace

TEST_CASE("Fork: shares full blocks and copies the one it ends in", "[kvcache]") {
  const bool prefix_cache = GENERATE(true, false);
  KvCacheManager kv(options(8, prefix_cache));
  const Text prompt(kv, count_to(11));
  compute(kv, kLeader, prompt);
  kv.fork(kFork, kLeader, 10);
  CHECK(kv.blocks_held(kFork) == 2);
  CHECK(kv.num_live_blocks() == 3);  // nothing is allocated before grow()
  kv.grow(kFork, 1);
  const auto leader = kv.block_table(kLeader);
  const auto forked = kv.block_table(kFork);
  CHECK(forked[0] == leader[0]);
  CHECK(forked[1] == leader[1]);
  CHECK(forked[2] != leader[2]);
  CHECK(kv.references(leader[1]) == 2);
  CHECK(one_copy(kv, kFork) == BlockCopy{leader[2], forked[2], 2});
  kv.check_may_write(kFork, 1);
  kv.commit(kFork, prompt.hashed(), 11);
  kv.check_integrity();
  CHECK(kv.num_live_blocks() == 4);
  CHECK(kv.blocks_freed_by_evicting(kLeader) == 1);
  CHECK(kv.blocks_freed_by_evicting(kFork) == 1);
}

TEST_CASE("Fork: at a block's border copies nothing", "[kvcache]") {
  KvCacheManager kv(options(8, false));
  const Text prompt(kv, count_to(9));
  compute(kv, kLeader, prompt);
  kv.fork(kFork, kLeader, 8);
  CHECK_FALSE(one_copy(kv, kFork).has_value());
  kv.grow(kFork, 1);
  CHECK_FALSE(one_copy(kv, kFork).has_value());
  kv.commit(kFork, prompt.hashed(), 9);
  kv.check_integrity();
}

TEST_CASE("Fork: shared blocks outlive whoever of the two goes first", "[kvcache]") {
  const bool prefix_cache = GENERATE(true, false);
  const bool leader_first = GENERATE(true, false);
  KvCacheManager kv(options(8, prefix_cache));
  const Text prompt(kv, count_to(11));
  compute(kv, kLeader, prompt);
  kv.fork(kFork, kLeader, 10);
  kv.grow(kFork, 1);
  evict(kv, leader_first ? kLeader : kFork);
  kv.check_integrity();
  CHECK(kv.num_live_blocks() == 3);
  evict(kv, leader_first ? kFork : kLeader);
  kv.check_integrity();
  CHECK(kv.num_free_blocks() == 8);
  CHECK(kv.num_cached_blocks() == (prefix_cache ? 2 : 0));
}

TEST_CASE(
    "Fork: goes on publishing where its source's chain is whole, and where it is cut does not",
    "[kvcache]") {
  KvCacheOptions one_hash = options(8);
  one_hash.hash = [](const BlockHash&, std::span<const TokenId>) { return BlockHash{1, 1}; };
  const bool cut = GENERATE(false, true);
  KvCacheManager kv(cut ? one_hash : options(8));
  Text prompt(kv, count_to(11));
  compute(kv, kLeader, prompt);
  CHECK(kv.is_published(kv.block_table(kLeader)[1]) != cut);
  kv.fork(kFork, kLeader, 10);
  kv.grow(kFork, 1);
  prompt.append(50);
  kv.commit(kFork, prompt.hashed(), 12);
  kv.check_integrity();
  CHECK(kv.is_published(kv.block_table(kFork)[2]) != cut);
  CHECK(kv.references(kv.block_table(kLeader)[1]) == 2);
}

TEST_CASE("Fork: of tokens that its source has not computed aborts", "[kvcache]") {
  KvCacheManager kv(options(8));
  const Text prompt(kv, count_to(11));
  kv.admit(kLeader, prompt.hashed(), 0);
  kv.grow(kLeader, 3);
  kv.commit(kLeader, prompt.hashed(), 9);
  CHECK(testing::aborts([&] { kv.fork(kFork, kLeader, 10); }));
  CHECK_FALSE(testing::aborts([&] { kv.fork(kFork, kLeader, 9); }));
  CHECK(testing::aborts([&] { kv.fork(kFork, kLeader, 0); }));
  CHECK(testing::aborts([&] { kv.fork(kLeader, kLeader, 9); }));
  CHECK(testing::aborts([&] { kv.fork(kFork, kThird, 9); }));
  kv.fork(kFork, kLeader, 9);
  CHECK(testing::aborts([&] { (void)one_copy(kv, kFork); }));  // it has no block yet
}

TEST_CASE("check_may_write: aborts at a block that is shared, published or missing", "[kvcache]") {
  KvCacheManager kv(options(8, false));
  const Text prompt(kv, count_to(11));
  compute(kv, kLeader, prompt);
  kv.fork(kFork, kLeader, 10);
  CHECK(testing::aborts([&] { kv.check_may_write(kFork, 1); }));  // no block for it
  kv.grow(kFork, 1);
  CHECK_FALSE(testing::aborts([&] { kv.check_may_write(kFork, 1); }));
  CHECK_FALSE(testing::aborts([&] { kv.check_may_write(kLeader, 1); }));
  CHECK(testing::aborts([&] { kv.check_may_write(kFork, 3); }));
  kv.truncate(kFork, 8);
  kv.truncate(kLeader, 6);  // back into a block that the fork holds
  CHECK(testing::aborts([&] { kv.check_may_write(kLeader, 1); }));
  CHECK(testing::aborts([&] { kv.check_integrity(); }));
}

TEST_CASE("check_may_write: aborts at a block that the prefix cache knows", "[kvcache]") {
  KvCacheManager kv(options(8));
  const Text prompt(kv, count_to(8));
  compute(kv, kLeader, prompt);
  kv.grow(kLeader, 1);
  CHECK_FALSE(testing::aborts([&] { kv.check_may_write(kLeader, 1); }));
  kv.truncate(kLeader, 6);  // its stripe stays, for it is published
  CHECK(testing::aborts([&] { kv.check_may_write(kLeader, 1); }));
}

TEST_CASE("Forks: of forks of forks, ended in any order, never lose or lend a value", "[kvcache]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 61)));
  CAPTURE(seed);
  RandomForks forks(seed);
  for (int i = 0; i < 400; ++i) {
    forks.act();
    forks.check();
  }
  forks.end_all();
}

}  // namespace kvasir::kvcache
