// The words in which scheduler and runtime meet without knowing each other: what a step shall do,
// and what it did.
#pragma once

#include "core/ids.h"
#include "core/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvasir {

/// A waiting sequence becomes running, with so many of its tokens already in the KV cache.
struct Admission {
  SequenceId sequence{};
  std::uint32_t cached_tokens = 0;  // below the sequence's token count; past the last full block
                                    // of them they are copied
  bool reserves_worst_case =
      false;  // room for all it can come to need is kept for it; it is never preempted again
  /// Absent: cached_tokens come from the prefix cache. Else from this running sequence, which
  /// begins with the same tokens.
  std::optional<SequenceId> fork_of = std::nullopt;
  friend bool operator==(const Admission&, const Admission&) = default;
};

/// The first `num_tokens` slots of one block become those of another, on all layers, before any
/// chunk of the step is computed. No source is a destination: the order of copies is free.
struct BlockCopy {
  BlockId source{};
  BlockId destination{};
  std::uint32_t num_tokens = 0;  // below block_tokens: full blocks are shared instead
  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

/// The tokens that one sequence computes in one step.
struct Chunk {
  SequenceId sequence{};
  std::uint32_t first_position = 0;   // == tokens already in the KV cache
  std::uint32_t num_tokens = 0;       // 1 for decode
  std::uint32_t num_new_stripes = 0;  // that apply() allocates for it, in every layer group
  std::uint32_t first_logits_row =
      0;  // rows from here to the end of the chunk may yield logits: the last known token's row to
          // sample, more to verify a draft or for prompt logprobs; == num_tokens for none
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

/// A waiting sequence that will never run, or a running one whose deadline passed, and why.
struct Rejection {
  SequenceId sequence{};
  ErrorCode code = ErrorCode::kInternal;  // kContextLengthExceeded or kDeadlineExceeded
  friend bool operator==(const Rejection&, const Rejection&) = default;
};

/// All decisions of one step. Equal inputs of plan() give equal plans.
struct StepPlan {
  std::vector<SequenceId> preempt;  // least important first; a step that preempts admits nothing
  std::vector<Rejection> reject;    // waiting or running; their blocks come home in apply()
  std::vector<Admission> admit;
  std::vector<Chunk> chunks;  // decode first, then prefill, in service order
  [[nodiscard]] bool empty() const {
    return preempt.empty() && reject.empty() && admit.empty() && chunks.empty();
  }
  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0F;  // natural, of the raw logits
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

/// The token that a sampled row yields.
struct SampledToken {
  SequenceId sequence{};
  TokenId token = 0;
  float logprob = 0.0F;           // only meaningful where the request wants logprobs
  std::vector<TokenLogprob> top;  // best first, ties by lowest id; as many as the request wants
  bool all_banned = false;        // no token was allowed: the sequence ends with an error
  friend bool operator==(const SampledToken&, const SampledToken&) = default;
};

/// How likely one token of a prompt was after those before it.
struct PromptToken {
  float logprob = 0.0F;    // natural, of the raw logits
  std::uint32_t rank = 0;  // 1 is the most likely; ties by lowest id
  friend bool operator==(const PromptToken&, const PromptToken&) = default;
};

/// The logprobs of consecutive tokens of a prompt, as far as one chunk tells them. The row of a
/// token predicts the next one, so a prompt's first token has none.
struct PromptLogprobs {
  SequenceId sequence{};
  std::uint32_t first_token = 1;    // index in the prompt of the first one here
  std::vector<PromptToken> tokens;  // never empty
  std::uint32_t num_top = 0;        // what the request wants, at most the vocabulary
  std::vector<TokenLogprob> top;    // [tokens, num_top]: best first, ties by lowest id
  friend bool operator==(const PromptLogprobs&, const PromptLogprobs&) = default;
};

/// What execute() gives back, each list in chunk order: an entry for each chunk that samples, and
/// for each that has rows of prompt logprobs.
struct StepResult {
  std::vector<SampledToken> sampled;
  std::vector<PromptLogprobs> prompts;
};

/// Why a sequence ended.
enum class FinishReason {
  kStop,       // an end-of-generation or stop token, or (by the server) a stop string
  kLength,     // max_tokens, or the context is full
  kCancelled,  // by the client, the server or a drain
  kError,      // see the error code: deadline, rejection, executor failure
};

/// Who cancelled. Every cause has its own count in the metrics.
enum class CancelCause { kStopString, kClientGone, kGrpcCancel, kDeadline, kSlowClient, kDrain };

}  // namespace kvasir
