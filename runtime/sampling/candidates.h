// Tokens that were picked from a row, each with its score, as numbers that sort heaviest first,
// ties to the lowest id. What a score is and how many tokens are wanted is for its callers to say.
#pragma once

#include "core/ids.h"
#include "runtime/sampling/row_scan.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvasir::runtime {

/// The score's ascending bits turned round above, the token below: ascending numbers are descending
/// scores, then ascending tokens.
enum class Candidate : std::uint64_t {};

/// Requires: a score that is not NaN.
[[nodiscard]] constexpr Candidate candidate_of(TokenId token, float score) {
  // -0 and 0 tie: adding 0 makes them one.
  return Candidate{std::uint64_t{~ascending_bits(score + 0.0F)} << 32U | token};
}
[[nodiscard]] constexpr TokenId token_of(Candidate candidate) {
  return static_cast<TokenId>(candidate);
}
[[nodiscard]] constexpr float score_of(Candidate candidate) {
  return float_of_ascending(
      ~static_cast<std::uint32_t>(static_cast<std::uint64_t>(candidate) >> 32U));
}

/// The candidates of one row and what sorting them needs, with room for the whole vocabulary.
struct CandidateBuffer {
  explicit CandidateBuffer(std::uint32_t vocab_size) : list(vocab_size), spare(vocab_size) {}
  [[nodiscard]] static std::size_t bytes(std::uint32_t vocab_size) {
    return 2 * sizeof(Candidate) * std::size_t{vocab_size};
  }
  std::vector<Candidate> list;   // [vocab_size]
  std::vector<Candidate> spare;  // [vocab_size]
};

/// Up to so many are wanted by picking them out; more by sorting all.
inline constexpr std::size_t kFewCandidates = 1024;

/// Moves the `wanted` heaviest of the first `count` to the front of the list, in no order.
void pick_heaviest(CandidateBuffer& buffer, std::size_t count, std::size_t wanted);

/// The `wanted` heaviest (or all) of the first `count` of the list, in order. The list's tokens
/// ascend, unless few are wanted.
[[nodiscard]] std::span<const Candidate> sort_heaviest(CandidateBuffer& buffer, std::size_t count,
                                                       std::size_t wanted);

/// Puts the tokens above `below` in the list, ascending, with score(logit) each, and returns their
/// number.
template <typename Score>
std::size_t collect_above(RowScan& row, float below, const Score& score, CandidateBuffer& buffer) {
  std::size_t count = 0;
  row.for_each_above(
      below,
      [&](TokenId token) {
        buffer.list[count++] = candidate_of(token, score(row.logits()[token]));
      },
      [](float cut) { return cut; });
  return count;
}

/// The same, but of few that are wanted perhaps without tokens that cannot be among them, and then
/// in no order: however many tie, the list stays short. Score(logit) never falls while the logit
/// rises.
template <typename Score>
std::size_t collect_heaviest(RowScan& row, float below, std::size_t wanted, const Score& score,
                             CandidateBuffer& buffer) {
  if (wanted > kFewCandidates) return collect_above(row, below, score, buffer);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::size_t count = 0;
  row.for_each_above(
      below,
      [&](TokenId token) {
        buffer.list[count++] = candidate_of(token, score(row.logits()[token]));
      },
      [&](float cut) {
        if (count < 2 * wanted + kVocabRange) return cut;
        pick_heaviest(buffer, count, wanted);
        count = wanted;
        // Later tokens lose every tie with the last of these.
        const float last = score_of(buffer.list[wanted - 1]);
        const auto beats = [&](float logit) { return score(logit) > last; };
        return beats(kInfinity) ? last_without(kInfinity, beats) : kInfinity;
      });
  return count;
}

}  // namespace kvasir::runtime
