// An audit without a planted slot must find all equal: the simulation has no other way to make a
// cached block stale.
#include "tests/sim/auditor.h"

#include "core/check.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvasir::sim {
namespace {

constexpr std::size_t kRemembered = 12;
constexpr std::uint32_t kAllSteps = std::numeric_limits<std::uint32_t>::max();
/// Ids that no sequence has.
constexpr std::uint64_t kFirstAuditId = std::uint64_t{1} << 60;

}  // namespace

void Auditor::remember(const scheduler::Sequence& sequence, std::uint32_t cached_tokens) {
  Hit hit{sequence.tokens, sequence.hashes, cached_tokens};
  if (hits_.size() < kRemembered) {
    hits_.push_back(std::move(hit));
  } else {
    hits_[random_.between(0, kRemembered - 1)] = std::move(hit);
  }
}

void Auditor::audit(Tally& tally) {
  if (hits_.empty()) return;
  const Hit& hit = hits_[random_.between(0, static_cast<std::uint32_t>(hits_.size()) - 1)];
  const std::uint32_t most_steps = random_.chance(250) ? random_.between(0, 3) : kAllSteps;
  const Outcome outcome = run(hit, most_steps);
  KVASIR_CHECK(!outcome.wrong_at, "an audit finds what nobody planted at " << *outcome.wrong_at);
  if (!outcome.opened) {
    ++tally.audits_refused;
  } else if (!outcome.finished) {
    ++tally.audits_cut_short;
  } else {
    ++tally.audits;
    if (outcome.compared.empty() || !random_.chance(300)) return;
    const auto last = static_cast<std::uint32_t>(outcome.compared.size()) - 1;
    plant_and_find(hit, outcome.compared[random_.between(0, last)], tally);
  }
}

Auditor::Outcome Auditor::run(const Hit& hit, std::uint32_t most_steps) {
  Outcome outcome;
  const std::uint32_t live = kv_.num_live_blocks();
  const SequenceId id{kFirstAuditId + num_audits_++};
  outcome.opened = kv_.open_audit(id, hit.text(), hit.cached_tokens);
  if (!outcome.opened) return outcome;
  std::uint32_t audited = 0;
  for (std::uint32_t i = 0; i < most_steps && !outcome.wrong_at; ++i) {
    const std::optional<kvcache::AuditStep> step = kv_.next_audit_step(id);
    if (!step) break;
    KVASIR_CHECK(step->first_position == audited, "an audit leaves tokens out");
    const bool equal = executor_.audit(id, *step, hit.tokens, hit.hashes.cache_salt());
    kv_.end_audit_step(id, equal);
    audited += step->num_tokens;
    if (!equal) outcome.wrong_at = step->first_position;
    for (const kvcache::AuditStep::Pair& pair : step->pairs) {
      outcome.compared.push_back(
          {pair.cached, step->first_position + random_.between(0, step->num_tokens - 1)});
    }
  }
  outcome.finished = audited == hit.cached_tokens;
  kv_.close_audit(id);
  KVASIR_CHECK(kv_.num_live_blocks() == live, "an audit keeps blocks");
  return outcome;
}

/// The audit before has shown that all is right, so that the planted slot is all there is to find.
void Auditor::plant_and_find(const Hit& hit, const Place& place, Tally& tally) {
  if (!kv_.is_published(place.block)) return;  // it gave way to what the audit before computed
  const std::uint32_t block_tokens = kv_.geometry().block_tokens;
  executor_.spoil(place.block, place.position % block_tokens);
  const Outcome outcome = run(hit, kAllSteps);
  if (!outcome.wrong_at) {
    // In a pool that has no room for both, what a window keeps may give way uncompared.
    KVASIR_CHECK(
        std::ranges::find(outcome.compared, place.block, &Place::block) == outcome.compared.end(),
        "a stale slot at " << place.position << " is not found");
    executor_.spoil(place.block, place.position % block_tokens);
    return;
  }
  const std::uint32_t stripe = place.position / block_tokens * block_tokens;
  KVASIR_CHECK(outcome.wrong_at == stripe,
               "found at " << *outcome.wrong_at << ", not at " << stripe);
  KVASIR_CHECK(!kv_.is_published(place.block), "what was found stale stays");
  KVASIR_CHECK(kv_.match_prefix(hit.text()).tokens <= stripe, "what follows a stale block stays");
  ++tally.planted_found;
}

}  // namespace kvasir::sim
