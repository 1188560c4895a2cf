// One answered request while it runs: one or more choices, each a sequence in the engine. The
// engine thread feeds it tokens; the door's own thread polls it for finished text. No sockets, no
// JSON, no protobuf here.
#pragma once

#include "core/ids.h"
#include "core/result.h"
#include "core/step_plan.h"
#include "engine/engine.h"
#include "engine/events.h"
#include "server/kv_receipt.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::server {

/// A token as a list of logprobs shows it. Both texts are views of the tokenizer's, which outlives
/// all generations: an answer keeps many thousands of these.
struct TokenText {
  TokenId token = 0;
  float logprob = 0.0F;
  std::string_view bytes;     // what the token adds; empty for end-of-generation tokens
  std::string_view spelling;  // its bytes with control tokens spelled out: what a list of tokens
                              // shows. Not always UTF-8
};

/// One counted completion token, or one of a prompt, with its alternatives. Made only where
/// logprobs were asked for.
struct LogprobEntry {
  TokenText chosen;
  std::vector<TokenText> top;  // best first
  bool has_logprob = true;     // false for a prompt's very first token
  std::uint32_t rank = 0;      // of a prompt's token: 1 was the most likely
};

/// What of a delta's text and entries is the prompt's.
struct EchoPart {
  std::size_t text_bytes = 0;
  std::size_t num_entries = 0;
};

/// What became ready for one choice since the last poll. Joined over all polls, `text` is the whole
/// answer.
struct ChoiceDelta {
  std::uint32_t choice_index = 0;
  std::string text;  // whole UTF-8 characters; nothing that may yet become a stop string
  std::vector<TokenId> token_ids;      // counted tokens, the one that completes a stop included
  std::vector<LogprobEntry> logprobs;  // entries of held-back or empty tokens travel with the next
                                       // content, else with the finish
  std::optional<FinishReason>
      finish;  // set on the last delta of the choice: kStop or kLength (others come as `error`)
  std::optional<std::string> stop_string;  // stop_reason: the stop string that matched ...
  std::optional<TokenId> stop_token;  // ... or the request's own stop token id that was sampled
  std::optional<Error> error;         // set instead of finish; ends the choice
  EchoPart echo;  // `text` and `logprobs` begin with it: only in a choice's first delta
};

struct Usage {
  std::uint64_t prompt_tokens = 0;  // each prompt counts once, whatever n
  std::uint64_t completion_tokens = 0;
  std::uint64_t cached_tokens = 0;
  std::optional<KvReceipt> kv_cache;  // where one is wanted, and everything has ended
};

/// Thread-safe: the engine thread feeds, one door thread polls.
class Generation {
 public:
  virtual ~Generation() = default;

  /// Everything that became ready. Detokenising and stop matching happen here, on the caller's
  /// thread. Never blocks.
  [[nodiscard]] virtual std::vector<ChoiceDelta> poll() = 0;
  /// Every choice has had its last delta.
  [[nodiscard]] virtual bool done() const = 0;
  /// Complete when done(); a running count before.
  [[nodiscard]] virtual Usage usage() const = 0;
  [[nodiscard]] virtual std::uint32_t num_choices() const = 0;
  /// The request asked for token ids (return_token_ids).
  [[nodiscard]] virtual bool lists_token_ids() const = 0;
  /// Token ids of each prompt, in prompt order.
  [[nodiscard]] virtual const std::vector<std::vector<TokenId>>& prompt_token_ids() const = 0;
  /// So many best tokens the answer lists beside each token of a prompt (prompt_logprobs); absent:
  /// it lists no prompt logprobs.
  [[nodiscard]] virtual std::optional<std::uint32_t> listed_prompt_top() const = 0;
  /// One entry for each token of a prompt, complete as soon as a delta of one of its choices was
  /// polled; they may have more best tokens than are listed. Empty when none were asked for.
  [[nodiscard]] virtual const std::vector<LogprobEntry>& prompt_logprobs(
      std::size_t prompt) const = 0;
  /// Ends all live choices; their blocks come home within one step. Idempotent.
  virtual void cancel(CancelCause cause) = 0;
};

/// Called on the engine thread when something became ready after a poll found nothing more; must
/// only post to the door's own executor. Called once after each poll at most.
using WakeFunction = std::function<void()>;

}  // namespace kvasir::server
