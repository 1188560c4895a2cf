#include "server/kv_receipt.h"

#include "kvcache/kv_formula.h"
#include "kvcache/kv_plan.h"

#include <algorithm>
#include <array>

namespace kvasir::server {

std::span<const FactRow<KvReceipt>> kv_receipt_rows() {
  using R = KvReceipt;
  static const auto rows = std::to_array<FactRow<R>>({
      {"peak_bytes", &R::peak_bytes,
       "Blocks that the sequence held at once at most: shared ones included, and a cached one that "
       "it copied from, for the step in which it did."},
      {"shared_bytes", &R::shared_bytes,
       "Of them, at that moment, those that it had not allocated: from the prefix cache, or of "
       "another choice of its prompt."},
      {"bytes_per_token", &R::bytes_per_token,
       "Keys and values of one token over all layers; no sum, the same for every answer."},
      {"formula", &R::formula, "How bytes_per_token comes about, as text."},
      {"cached_tokens", &R::cached_tokens,
       "Prompt tokens that were there when it was first admitted: in the prefix cache, or of "
       "another choice. usage.prompt_tokens_details counts those of each prompt's first choice "
       "alone."},
      {"computed_tokens", &R::computed_tokens,
       "Tokens that went through the model, those computed again after a preemption included. "
       "Without preemptions: prompt + generated - 1 - cached."},
      {"token_passes", &R::token_passes, "The same as computed_tokens."},
      {"token_passes_without_cache", &R::token_passes_without_cache,
       "What it would have been if nothing were kept and each new token began with the whole text "
       "before it."},
      {"attention_scores", &R::attention_scores,
       "Products of a query and a key, for one head of one layer; where windows differ the mean "
       "over the layers, rounded down."},
      {"attention_scores_without_cache", &R::attention_scores_without_cache,
       "What they would have been, likewise."},
      {"preemptions", &R::preemptions, "Times that it was stopped to go on later."},
      {"recomputed_tokens", &R::recomputed_tokens, "Of computed_tokens, those it cost."},
      {"taken_bytes", &R::taken_bytes, "Blocks that were free and that it took."},
      {"returned_bytes", &R::returned_bytes,
       "Blocks that it gave back and that nobody else held then; of all sequences, taken less "
       "returned is what is live."},
  });
  return rows;
}

void KvReceiptSum::add(const engine::SequenceUsage& usage) {
  sum_.peak_bytes += usage.peak_kv_bytes;
  sum_.shared_bytes += usage.shared_kv_bytes;
  sum_.cached_tokens += usage.cached_tokens;
  sum_.computed_tokens += usage.computed_tokens;
  sum_.attention_scores += usage.attention_scores_all_layers;
  sum_.preemptions += usage.preemptions;
  sum_.recomputed_tokens += usage.recomputed_tokens;
  sum_.taken_bytes += usage.taken_kv_bytes;
  sum_.returned_bytes += usage.returned_kv_bytes;
  if (usage.computed_tokens == 0) return;  // an echo alone needs no model, with a cache or without
  sum_.token_passes_without_cache +=
      kvcache::token_passes_without_cache(usage.prompt_tokens, usage.completion_tokens);
  sum_.attention_scores_without_cache += kvcache::attention_scores_without_cache(
      *geometry_, usage.prompt_tokens, usage.completion_tokens);
}

KvReceipt KvReceiptSum::receipt() const {
  KvReceipt receipt = sum_;
  const std::uint64_t layers = std::max(geometry_->num_layers(), 1U);
  receipt.attention_scores /= layers;
  receipt.attention_scores_without_cache /= layers;
  receipt.token_passes = receipt.computed_tokens;
  receipt.bytes_per_token = geometry_->bytes_per_token();
  receipt.formula = kvcache::bytes_per_token_formula(*geometry_);
  return receipt;
}

}  // namespace kvasir::server
