// Audits: what is compared with what, what they hold, and what a mismatch throws away. Blocks have
// four tokens. Whether slots are equal is said by the test.
#include "tests/kvcache/kv_text.h"
#include "tests/support/aborts.h"
#include "tests/support/catch.h"

#include <optional>
#include <vector>

namespace kvasir::kvcache {
namespace {

using namespace testing_kv;

constexpr SequenceId kAudit{100};
constexpr SequenceId kFirst{1};
constexpr SequenceId kSecond{2};

KvCacheOptions plain(std::uint32_t num_blocks) { return cache_options({layers(1, 0)}, num_blocks); }

void come_and_go(KvCacheManager& kv, const Text& text) {
  run(kv, SequenceId{50}, text);
  (void)kv.evict(SequenceId{50}, text.hashed());
}

/// Runs an audit until a stripe at `bad_position` turns out wrong, or to its end; returns the
/// steps.
std::vector<AuditStep> audit(KvCacheManager& kv, const Text& text, std::uint32_t num_tokens,
                             std::optional<std::uint32_t> bad_position = {}) {
  std::vector<AuditStep> steps;
  if (!kv.open_audit(kAudit, text.hashed(), num_tokens)) return steps;
  while (const auto step = kv.next_audit_step(kAudit)) {
    kv.check_may_write(kAudit, step->num_tokens);
    kv.check_integrity();
    steps.push_back(*step);
    kv.end_audit_step(kAudit, step->first_position != bad_position);
    kv.check_integrity();
  }
  kv.close_audit(kAudit);
  kv.check_integrity();
  return steps;
}

}  // namespace

TEST_CASE("Audit: compares every stripe once, in order, and leaves the cache as it was",
          "[kvcache]") {
  KvCacheManager kv(plain(10));
  const Text text(kv, count_from(0, 11));
  come_and_go(kv, text);
  const std::vector<AuditStep> steps = audit(kv, text, 11);
  REQUIRE(steps.size() == 3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    CHECK(steps[i].first_position == i * 4);
    CHECK(steps[i].num_tokens == (i < 2 ? 4 : 3));
    REQUIRE(steps[i].pairs.size() == 1);
    CHECK(kv.is_published(steps[i].pairs[0].cached));
    CHECK_FALSE(kv.is_published(steps[i].pairs[0].fresh));
  }
  CHECK(kv.num_live_blocks() == 0);
  CHECK(kv.num_cached_blocks() == 3);
  CHECK(kv.totals().dropped == 0);
  CHECK(kv.totals().taken == kv.totals().returned);
  CHECK(kv.num_sequences() == 0);
}

TEST_CASE("Audit: a few blocks are enough for a long prefix", "[kvcache]") {
  KvCacheManager kv(cache_options({layers(1, 0), layers(1, 6)}, 33, 8));
  const Text text(kv, count_from(0, 61));
  come_and_go(kv, text);
  // 16 stripes of the group without a window, and what is left of the windowed ones.
  const std::vector<AuditStep> steps = audit(kv, text, 60);
  REQUIRE(steps.size() == 15);
  CHECK(steps[14].pairs.size() == 2);  // the windowed stripe is there as well
  CHECK(kv.match_prefix(text.hashed()).tokens == 60);
}

TEST_CASE("Audit: what is not wholly cached is not audited", "[kvcache]") {
  KvCacheManager kv(plain(10));
  const Text text(kv, count_from(0, 11));
  CHECK_FALSE(kv.open_audit(kAudit, text.hashed(), 8));
  come_and_go(kv, text);
  const Text longer(kv, count_from(0, 30));
  CHECK_FALSE(kv.open_audit(kAudit, longer.hashed(), 12));
  CHECK_FALSE(kv.open_audit(kAudit, longer.hashed(), 0));
  CHECK(audit(kv, longer, 11).size() == 3);
  CHECK(audit(kv, longer, 9).size() == 3);
  CHECK(audit(kv, longer, 8).size() == 2);
  const Text unhashed(kv, count_from(0, 11));
  CHECK_FALSE(kv.open_audit(kAudit, {unhashed.tokens, HashChain()}, 8));
}

TEST_CASE("Audit: what is wrong leaves the cache with all that follows it", "[kvcache]") {
  KvCacheManager kv(plain(20));
  const Text text(kv, count_from(0, 15));
  const Text beside(kv, joined(count_from(0, 8), {80, 81, 82, 83, 84}));
  come_and_go(kv, text);
  come_and_go(kv, beside);
  CHECK(kv.num_cached_blocks() == 6);
  CHECK(audit(kv, text, 15, 8).size() == 3);
  CHECK(kv.totals().dropped == 2);
  CHECK(kv.match_prefix(text.hashed()).tokens == 8);
  CHECK(kv.match_prefix(beside.hashed()).tokens == 12);
  CHECK(audit(kv, beside, 12, 4).size() == 2);
  CHECK(kv.match_prefix(beside.hashed()).tokens == 4);
  CHECK(kv.num_cached_blocks() == 1);
  CHECK(kv.num_free_blocks() == 20);
}

TEST_CASE("Audit: who holds what is wrong goes on and publishes nothing after it", "[kvcache]") {
  KvCacheManager kv(plain(20));
  Text text(kv, count_from(0, 11));
  run(kv, kFirst, text);
  CHECK(audit(kv, text, 8, 4).size() == 2);
  CHECK(kv.match_prefix(text.hashed()).tokens == 4);
  CHECK(kv.block_table(kFirst).size() == 3);
  CHECK_FALSE(kv.is_published(kv.block_table(kFirst)[1]));
  text.append(60);
  text.append(61);
  kv.grow(kFirst, 1);
  kv.check_may_write(kFirst, 2);
  kv.commit(kFirst, text.hashed(), 13);
  kv.check_integrity();
  CHECK_FALSE(kv.is_published(kv.block_table(kFirst)[2]));
  kv.fork(kSecond, kFirst, 13);
  kv.grow(kSecond, 1);
  kv.commit(kSecond, text.hashed(), 13);
  kv.check_integrity();
  (void)kv.evict(kSecond, text.hashed());
  // Nor does a fork whose chain is whole but for what it copies.
  Text copied(kv, joined(count_from(0, 6), {70, 71}));
  kv.fork(kSecond, kFirst, 6);
  kv.grow(kSecond, 1);
  kv.commit(kSecond, copied.hashed(), 8);
  kv.check_integrity();
  CHECK_FALSE(kv.is_published(kv.block_table(kSecond)[1]));
  (void)kv.evict(kSecond, copied.hashed());
  (void)kv.evict(kFirst, text.hashed());
  kv.check_integrity();
  CHECK(kv.num_cached_blocks() == 1);
  CHECK(kv.num_free_blocks() == 20);
}

TEST_CASE("Audit: what was copied from a wrong stripe goes with it", "[kvcache]") {
  KvCacheManager kv(plain(20));
  const Text stale(kv, count_from(0, 8));
  come_and_go(kv, stale);
  const Text copied(kv, joined(count_from(0, 6), {70, 71, 72, 73}));
  CHECK(kv.match_prefix(copied.hashed()).tokens == 6);
  come_and_go(kv, copied);
  Text running(kv, joined(count_from(0, 6), {90}));  // has copied, and has not published yet
  CHECK(run(kv, kFirst, running).tokens == 6);
  const Text apart(kv, {0, 1, 2, 3, 40, 41, 42, 43, 44});  // begins the stripe with another token
  come_and_go(kv, apart);
  CHECK(audit(kv, stale, 8, 4).size() == 2);
  CHECK(kv.match_prefix(copied.hashed()).tokens == 4);
  CHECK(kv.match_prefix(apart.hashed()).tokens == 8);
  for (TokenId token = 91; token < 96; ++token) running.append(token);
  kv.grow(kFirst, 1);
  kv.commit(kFirst, running.hashed(), 12);
  CHECK_FALSE(kv.is_published(kv.block_table(kFirst)[1]));
  kv.check_integrity();
}

TEST_CASE("Audit: of two that compare the same, one may drop it under the other", "[kvcache]") {
  constexpr SequenceId kOther{101};
  KvCacheManager kv(plain(20));
  const Text text(kv, count_from(0, 12));
  come_and_go(kv, text);
  REQUIRE(kv.open_audit(kOther, text.hashed(), 12));
  REQUIRE(kv.next_audit_step(kOther).has_value());
  CHECK(audit(kv, text, 12, 0).size() == 1);
  kv.end_audit_step(kOther, true);
  kv.check_integrity();
  CHECK_FALSE(kv.next_audit_step(kOther).has_value());
  kv.close_audit(kOther);
  kv.check_integrity();
  CHECK(kv.num_free_blocks() == 20);
  CHECK(kv.num_cached_blocks() == 0);
}

TEST_CASE("Audit: without room it is given up", "[kvcache]") {
  KvCacheManager kv(plain(4));
  const Text text(kv, count_from(0, 9));
  run(kv, kFirst, text);
  const Text other(kv, {99});
  run(kv, kSecond, other);
  REQUIRE(kv.open_audit(kAudit, text.hashed(), 8));
  CHECK_FALSE(kv.next_audit_step(kAudit).has_value());
  (void)kv.evict(kSecond, other.hashed());
  CHECK_FALSE(kv.next_audit_step(kAudit).has_value());  // that is for good
  kv.close_audit(kAudit);
  kv.check_integrity();
}

TEST_CASE("Audit: may be closed at any time", "[kvcache]") {
  KvCacheManager kv(cache_options({layers(2, 6), layers(1, 0)}, 40, 8));
  const Text text(kv, count_from(0, 20));
  come_and_go(kv, text);
  const std::uint32_t cached = kv.num_cached_blocks();
  const int when = GENERATE(0, 1, 2, 3);
  REQUIRE(kv.open_audit(kAudit, text.hashed(), 19));
  if (when > 0) REQUIRE(kv.next_audit_step(kAudit).has_value());
  if (when > 1) kv.end_audit_step(kAudit, true);
  if (when > 2) REQUIRE(kv.next_audit_step(kAudit).has_value());
  kv.check_integrity();
  CHECK(testing::aborts([&] { (void)kv.evict(kAudit, text.hashed()); }));
  CHECK(testing::aborts([&] { kv.close_audit(kFirst); }));
  kv.close_audit(kAudit);
  kv.check_integrity();
  CHECK(kv.num_free_blocks() == 40);
  CHECK(kv.num_cached_blocks() == cached);
}

}  // namespace kvasir::kvcache
