// Each action is what a step of the engine does with one or two sequences, in its order: evict,
// admit and fork, grow, copy, write, commit. Room is asked for as the planner does.
#include "tests/kvcache/kv_world.h"

#include "tests/support/catch.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvasir::kvcache::testing_kv {
namespace {

constexpr std::uint64_t kNonsense = 0xbad;
constexpr std::size_t kMostRemembered = 12;

}  // namespace

World::World(const KvCacheOptions& options, std::uint64_t seed)
    : seed_(seed), kv_(options), slots_(std::size_t{options.num_blocks} * kSlots, kNonsense) {}

void World::act() {
  const std::uint32_t action = below(20);
  auto chosen = live_.begin();
  if (!live_.empty()) std::advance(chosen, below(live_.size()));
  if (live_.empty() || action <= 2) {
    start(1 + below(2));
  } else if (action <= 4) {
    fork(chosen->second, SequenceId{chosen->first});
  } else if (action <= 13) {
    compute(SequenceId{chosen->first}, chosen->second, 1 + below(kv_.geometry().largest_chunk));
  } else if (action == 14) {
    fail(chosen);
  } else if (action == 15) {
    truncate(SequenceId{chosen->first}, chosen->second);
  } else if (action == 16) {
    audit();
  } else {
    leave(chosen);
  }
}

void World::check() {
  kv_.check_integrity();
  check_counts();
  for (const auto& [id, one] : live_) check_seen(SequenceId{id}, one, one.computed);
}

void World::end() {
  while (!live_.empty()) leave(live_.begin());
  check();
  CHECK(kv_.num_live_blocks() == 0);
  CHECK(kv_.shared_window_blocks() == 0);
  CHECK(closed_taken_ == closed_returned_);
}

/// Newcomers of one step: all are admitted before any grows.
void World::start(std::uint32_t count) {
  struct Newcomer {
    SequenceId id;
    std::uint32_t end = 0;
  };
  std::vector<Newcomer> admitted;
  std::int64_t room = kv_.num_free_blocks();
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t salt = below(8) == 0 ? 1 : 0;
    Live one{Text(kv_, make_tokens(), salt), salt, 0};
    const PrefixMatch whole = kv_.match_whole_stripes(one.text.hashed());
    PrefixMatch match = kv_.match_prefix(one.text.hashed());
    REQUIRE(match.tokens < one.text.size());
    REQUIRE(whole.tokens <= match.tokens);
    if (below(6) == 0 && match != whole) {
      match = whole;
      ++tally_.whole_hits;
    }
    const std::int64_t cost =
        static_cast<std::int64_t>(kv_.geometry().blocks_for(one.text.size())) - match.live_blocks +
        match.copy_blocks;
    if (cost > room) continue;
    room -= cost;
    const SequenceId id{++last_id_};
    kv_.admit(id, one.text.hashed(), match.tokens);
    tally_.hits += match.tokens > 0 ? 1 : 0;
    tally_.partial_hits += match.tokens % kSlots != 0 ? 1 : 0;
    one.computed = match.tokens;
    const std::uint32_t end =
        std::min(one.text.size(), match.tokens + kv_.geometry().largest_chunk);
    live_.emplace(last_id_, std::move(one));
    admitted.push_back({id, end});
  }
  for (const Newcomer& one : admitted) {
    kv_.grow(one.id, stripes_for(kv_, one.end) - kv_.num_stripes(one.id));
    REQUIRE(kv_.blocks_held(one.id) <= kv_.geometry().blocks_for(one.end));
  }
  for (const Newcomer& one : admitted) copy(one.id);
  for (const Newcomer& one : admitted) {
    const auto which = live_.find(value_of(one.id));
    if (below(10) == 0) {  // the step fails: what it wrote is nonsense, and nobody may find it
      write(one.id, which->second, which->second.computed, one.end, true);
      ++tally_.failures;
      leave(which);
      continue;
    }
    check_seen(one.id, which->second, which->second.computed);
    write(one.id, which->second, which->second.computed, one.end, false);
    which->second.computed = one.end;
    kv_.commit(one.id, which->second.text.hashed(), one.end);
  }
}

void World::fork(const Live& from, SequenceId source) {
  if (from.computed == 0) return;
  const std::uint32_t tokens = 1 + below(from.computed);
  if (!kv_.can_fork(source, tokens)) return;
  const auto first = from.text.tokens.begin();
  Live one{Text(kv_, {first, first + tokens}, from.salt), from.salt, tokens};
  for (std::uint32_t i = 1 + below(3); i > 0; --i) one.text.append(below(3));
  const std::uint32_t end = std::min(one.text.size(), tokens + kv_.geometry().largest_chunk);
  if (!has_room(stripes_for(kv_, end) - tokens / kSlots)) return;
  const SequenceId id{++last_id_};
  kv_.fork(id, source, tokens);
  kv_.grow(id, stripes_for(kv_, end) - kv_.num_stripes(id));
  REQUIRE(kv_.blocks_held(id) <= kv_.geometry().blocks_for(end));
  ++tally_.forks;
  if (below(8) == 0) {  // the step fails before anything was copied
    ++tally_.failures;
    leave(live_.emplace(last_id_, std::move(one)).first);
    return;
  }
  copy(id);
  check_seen(id, one, tokens);
  write(id, one, tokens, end, false);
  one.computed = end;
  kv_.commit(id, one.text.hashed(), end);
  live_.emplace(last_id_, std::move(one));
}

void World::compute(SequenceId id, Live& one, std::uint32_t num_tokens) {
  while (one.text.size() < one.computed + num_tokens && one.text.size() < 90) {
    one.text.append(below(3));
  }
  const std::uint32_t end = std::min(one.text.size(), one.computed + num_tokens);
  if (end == one.computed || !has_room(stripes_for(kv_, end) - kv_.num_stripes(id))) return;
  kv_.grow(id, stripes_for(kv_, end) - kv_.num_stripes(id));
  REQUIRE(kv_.blocks_held(id) <= kv_.geometry().blocks_for(end));
  write(id, one, one.computed, end, false);
  one.computed = end;
  kv_.commit(id, one.text.hashed(), end);
}

void World::fail(LiveMap::iterator which) {
  const SequenceId id{which->first};
  const std::uint32_t end = which->second.computed + 1;
  if (!has_room(stripes_for(kv_, end) - kv_.num_stripes(id))) return;
  kv_.grow(id, stripes_for(kv_, end) - kv_.num_stripes(id));
  which->second.text.append(0);
  write(id, which->second, which->second.computed, end, true);
  ++tally_.failures;
  leave(which);
}

/// As after drafts that were rejected: room was made for more than was kept.
void World::truncate(SequenceId id, const Live& one) {
  const std::uint32_t end = one.computed + 1 + below(kv_.geometry().largest_chunk);
  if (!has_room(stripes_for(kv_, end) - kv_.num_stripes(id))) return;
  kv_.grow(id, stripes_for(kv_, end) - kv_.num_stripes(id));
  kv_.truncate(id, one.computed);
}

void World::leave(LiveMap::iterator which) {
  const SequenceId id{which->first};
  const std::uint32_t freed = kv_.blocks_freed_by_evicting(id);
  const std::uint32_t before = kv_.num_free_blocks();
  const KvReceipt receipt = kv_.evict(id, which->second.text.hashed());
  REQUIRE(kv_.num_free_blocks() == before + freed);
  closed_taken_ += receipt.taken_blocks;
  closed_returned_ += receipt.returned_blocks;
  REQUIRE(receipt.shared_blocks <= receipt.peak_blocks);
  remembered_.push_back(std::move(which->second));
  if (remembered_.size() > kMostRemembered) remembered_.erase(remembered_.begin());
  live_.erase(which);
}

/// Computes the beginning of something remembered again. Now and then the cached stripe is spoiled
/// before it is compared; then it must be found out and never be found again.
void World::audit() {
  if (remembered_.empty()) return;
  const Live& one = remembered_[below(remembered_.size())];
  if (one.text.size() == 0) return;
  const SequenceId id{++last_id_};
  const std::uint32_t num_tokens = 1 + below(one.text.size());
  if (!kv_.open_audit(id, one.text.hashed(), num_tokens)) return;
  ++tally_.audits;
  bool plant = below(3) == 0;
  bool planted = false;
  while (const auto step = kv_.next_audit_step(id)) {
    const std::uint32_t end = step->first_position + step->num_tokens;
    check_seen(id, one, step->first_position);
    write(id, one, step->first_position, end, false);
    const bool wanted = plant;
    compare(id, *step, plant);
    planted = wanted && !plant;
    kv_.end_audit_step(id, !planted);
    kv_.check_integrity();
    tally_.audited_tokens += step->num_tokens;
    if (planted) {
      ++tally_.planted;
      CHECK_FALSE(kv_.next_audit_step(id).has_value());
      CHECK(kv_.match_prefix(one.text.hashed()).tokens <= step->first_position);
      break;
    }
    if (below(8) == 0) break;  // work arrives
  }
  const KvReceipt receipt = kv_.receipt(id);
  const std::uint32_t live = kv_.num_live_blocks();
  kv_.close_audit(id);
  // What it still held it gives back now.
  closed_taken_ += receipt.taken_blocks;
  closed_returned_ += receipt.returned_blocks + (live - kv_.num_live_blocks());
}

/// All pairs are equal, but for one that is spoiled if `plant` says so and nobody else would see
/// it.
void World::compare(SequenceId id, const AuditStep& step, bool& plant) {
  REQUIRE(kv_.num_sequences() == live_.size());
  for (const AuditStep::Pair& pair : step.pairs) {
    REQUIRE(pair.cached != pair.fresh);
    REQUIRE(kv_.references(pair.fresh) == 1);
    REQUIRE(kv_.is_published(pair.cached));
    std::uint64_t* const cached = &slots_[std::size_t{value_of(pair.cached)} * kSlots];
    for (std::uint32_t i = 0; i < step.num_tokens; ++i) {
      REQUIRE(cached[i] == slots_[std::size_t{value_of(pair.fresh)} * kSlots + i]);
    }
    if (plant && kv_.references(pair.cached) == 1 && below(2) == 0) {
      cached[0] = kNonsense;
      plant = false;
    }
  }
  (void)id;
}

std::uint32_t World::below(std::size_t bound) {
  return static_cast<std::uint32_t>(mix64(seed_ * 1'000'003 + draws_++) % bound);
}

/// The beginning of something remembered or running, then something else. Few different tokens, so
/// that much is shared by chance as well.
std::vector<TokenId> World::make_tokens() {
  std::vector<TokenId> tokens;
  const std::size_t num_known = remembered_.size() + live_.size();
  if (num_known > 0 && below(5) > 0) {
    const std::size_t which = below(num_known);
    const Live& known =
        which < remembered_.size()
            ? remembered_[which]
            : std::next(live_.begin(), static_cast<std::ptrdiff_t>(which - remembered_.size()))
                  ->second;
    tokens = known.text.tokens;
    if (below(3) == 0 && !tokens.empty()) tokens.resize(below(tokens.size()));
  }
  if (tokens.size() > 60) tokens.resize(60);
  for (std::uint32_t i = 1 + below(9); i > 0; --i) tokens.push_back(below(3));
  return tokens;
}

bool World::has_room(std::uint32_t num_stripes) const {
  return std::uint64_t{num_stripes} * kv_.geometry().blocks_per_stripes() <= kv_.num_free_blocks();
}

void World::copy(SequenceId id) {
  for (const BlockCopy& made : kv_.copies(id)) {
    REQUIRE(made.num_tokens >= 1);
    REQUIRE(made.num_tokens < kSlots);
    REQUIRE(kv_.references(made.source) >= 1);
    REQUIRE(kv_.references(made.destination) == 1);
    REQUIRE_FALSE(kv_.is_published(made.destination));
    std::copy_n(slots_.begin() + std::ptrdiff_t{value_of(made.source)} * kSlots, made.num_tokens,
                slots_.begin() + std::ptrdiff_t{value_of(made.destination)} * kSlots);
    ++tally_.copies;
  }
}

void World::write(SequenceId id, const Live& one, std::uint32_t first, std::uint32_t end,
                  bool nonsense) {
  kv_.check_may_write(id, end - first);
  for (std::size_t group = 0; group < kv_.geometry().groups.size(); ++group) {
    for (std::size_t block = 0; block < kv_.geometry().blocks_per_stripe(group); ++block) {
      for (std::uint32_t p = first; p < end; ++p) {
        slot(id, group, block, p) = nonsense ? kNonsense : truth(one, group, block, p);
      }
    }
  }
}

/// The query at `position` finds its own prefix in every slot that it sees.
void World::check_seen(SequenceId id, const Live& one, std::uint32_t position) {
  for (std::size_t group = 0; group < kv_.geometry().groups.size(); ++group) {
    const std::uint32_t window = kv_.geometry().groups[group].window_tokens;
    const std::uint32_t first = window == 0 || position < window ? 0 : position + 1 - window;
    for (std::size_t block = 0; block < kv_.geometry().blocks_per_stripe(group); ++block) {
      for (std::uint32_t p = first; p < position; ++p) {
        REQUIRE(slot(id, group, block, p) == truth(one, group, block, p));
      }
    }
  }
}

std::uint64_t& World::slot(SequenceId id, std::size_t group, std::size_t block_in_stripe,
                           std::uint32_t position) {
  const std::size_t stripe_blocks = kv_.geometry().blocks_per_stripe(group);
  const BlockId block =
      kv_.block_table(id, group)[position / kSlots * stripe_blocks + block_in_stripe];
  REQUIRE(block != kNoBlock);
  return slots_[std::size_t{value_of(block)} * kSlots + position % kSlots];
}

std::uint64_t World::truth(const Live& one, std::size_t group, std::size_t block_in_stripe,
                           std::uint32_t position) const {
  std::uint64_t value = mix64(one.salt * 64 + group * 8 + block_in_stripe);
  for (std::uint32_t p = 0; p <= position; ++p) value = mix64(value ^ one.text.tokens[p]);
  return value;
}

/// Counts that the manager keeps, taken from the tables again.
void World::check_counts() {
  std::uint64_t taken = closed_taken_;
  std::uint64_t returned = closed_returned_;
  std::vector<std::uint32_t> windowed(kv_.num_blocks(), 0);
  for (const auto& [id, one] : live_) {
    const KvReceipt& receipt = kv_.receipt(SequenceId{id});
    taken += receipt.taken_blocks;
    returned += receipt.returned_blocks;
    REQUIRE(kv_.blocks_held(SequenceId{id}) <= kv_.geometry().blocks_for(one.computed));
    for (std::size_t group = 0; group < kv_.geometry().groups.size(); ++group) {
      if (kv_.geometry().groups[group].window_tokens == 0) continue;
      for (const BlockId block : kv_.block_table(SequenceId{id}, group)) {
        if (block != kNoBlock) ++windowed[value_of(block)];
      }
    }
  }
  std::uint32_t shared = 0;
  for (const std::uint32_t holders : windowed) shared += holders > 1 ? holders - 1 : 0;
  REQUIRE(kv_.shared_window_blocks() == shared);
  REQUIRE(taken - returned == kv_.num_live_blocks());
  REQUIRE(kv_.totals().taken == taken);
  REQUIRE(kv_.num_sequences() == live_.size());
}

}  // namespace kvasir::kvcache::testing_kv
