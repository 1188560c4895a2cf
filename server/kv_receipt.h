// What an answer cost in keys and values: `usage.kv_cache`. It adds up what the engine says of each
// sequence and what the same tokens would have cost without a cache; how it is written is the
// doors'.
#pragma once

#include "engine/events.h"
#include "kvcache/kv_geometry.h"
#include "server/answer_facts.h"

#include <cstdint>
#include <span>
#include <string>

namespace kvasir::server {

/// Sums over the sequences of an answer: each choice of each prompt. What a member means is its
/// row's.
struct KvReceipt {
  std::uint64_t peak_bytes = 0;
  std::uint64_t shared_bytes = 0;
  std::uint64_t bytes_per_token = 0;
  std::string formula;
  std::uint64_t cached_tokens = 0;
  std::uint64_t computed_tokens = 0;
  std::uint64_t token_passes = 0;
  std::uint64_t token_passes_without_cache = 0;
  std::uint64_t attention_scores = 0;
  std::uint64_t attention_scores_without_cache = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t recomputed_tokens = 0;
  std::uint64_t taken_bytes = 0;
  std::uint64_t returned_bytes = 0;
};
[[nodiscard]] std::span<const FactRow<KvReceipt>> kv_receipt_rows();

/// Adds up sequences that have ended.
class KvReceiptSum {
 public:
  /// `geometry` outlives the sum.
  explicit KvReceiptSum(const kvcache::KvGeometry& geometry) : geometry_(&geometry) {}

  void add(const engine::SequenceUsage& usage);
  [[nodiscard]] KvReceipt receipt() const;

 private:
  const kvcache::KvGeometry* geometry_;
  KvReceipt sum_;  // its attention scores are over all layers, still to be divided by them
};

}  // namespace kvasir::server
