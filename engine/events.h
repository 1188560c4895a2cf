// The closed lists of what enters and leaves the engine. Commands come through the mailbox from any
// thread; events go to the sink of their sequence, on the engine thread.
#pragma once

#include "core/clock.h"
#include "core/ids.h"
#include "core/request.h"
#include "core/result.h"
#include "core/step_plan.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

namespace kvasir::engine {

struct TokenEvent {
  TokenId token = 0;
  float logprob = 0.0F;           // meaningful where the request wants logprobs
  std::vector<TokenLogprob> top;  // best first
  TimePoint at{};                 // end of the pass that made it
};

/// What a sequence cost, for `usage`, metrics and tests.
struct SequenceUsage {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;  // generated, an end-of-generation token included
  std::uint32_t cached_tokens =
      0;  // of the prompt, found in the prefix cache or taken as a fork at the first admission
  std::uint64_t computed_tokens = 0;  // token passes, recomputation after preemption included
  std::uint64_t recomputed_tokens = 0;
  std::uint32_t preemptions = 0;
  // keys and values, over all the times that it ran: see kvcache::KvReceipt
  std::uint64_t peak_kv_bytes = 0;
  std::uint64_t shared_kv_bytes =
      0;  // of them, at that moment: not allocated by the sequence itself
  std::uint64_t taken_kv_bytes = 0;
  std::uint64_t returned_kv_bytes = 0;
  /// Products of a query and a key that were computed, for one head, summed over all layers.
  std::uint64_t attention_scores_all_layers = 0;
  Duration queue_time{};    // submit to first admission
  Duration prefill_time{};  // first admission to first token
  Duration decode_time{};   // first token to finish
};

/// Exactly one for each submitted sequence, always last.
struct FinishEvent {
  FinishReason reason = FinishReason::kStop;
  std::optional<TokenId> stop_token;        // the token that ended it, for kStop
  std::optional<CancelCause> cancel_cause;  // for kCancelled
  std::optional<Error> error;               // for kError
  SequenceUsage usage;
  TimePoint at{};  // when it ended in the engine
};

/// Where one sequence's events go. Called on the engine thread: must return at once and never
/// throw.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  /// False: the sink is over its bound (its reader is too slow); the sequence is cancelled with
  /// kSlowClient.
  [[nodiscard]] virtual bool on_token(TokenEvent event) noexcept = 0;
  /// What a step tells of a prompt whose logprobs are wanted: in order of its tokens, each once,
  /// all of them before the first token. Their number is known before the request is submitted,
  /// which is where it is bounded: they are never refused.
  virtual void on_prompt_logprobs(PromptLogprobs /*scores*/) noexcept {}
  virtual void on_finish(FinishEvent event) noexcept = 0;
};

struct Submit {
  SequenceId id{};
  Request request;
  std::shared_ptr<TokenSink> sink;
};
struct Cancel {
  SequenceId id{};  // unknown or finished ids are ignored
  CancelCause cause = CancelCause::kClientGone;
  /// For kStopString: the tokens that count for the client; what was generated past them is waste.
  std::optional<std::uint32_t> counted_tokens;
};
/// Accept no more; running and waiting sequences go on until `deadline`, then end with kCancelled
/// and kDrain.
struct Drain {
  TimePoint deadline{};
};
using Command = std::variant<Submit, Cancel, Drain>;

}  // namespace kvasir::engine
