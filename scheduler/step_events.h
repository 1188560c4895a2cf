// What a step did to its sequences, in the scheduler's words. The engine turns it into events for
// the sinks.
#pragma once

#include "core/result.h"
#include "core/step_plan.h"
#include "scheduler/sequence.h"

#include <optional>
#include <vector>

namespace kvasir::scheduler {

/// A sequence that has left the scheduler; its blocks are home.
struct Finish {
  Sequence sequence;  // with all counters; see usage_of()
  FinishReason reason = FinishReason::kStop;
  std::optional<TokenId> stop_token;  // for kStop
  std::optional<Error> error;         // for kError
};

struct StepEvents {
  std::vector<PromptLogprobs> prompts;  // in chunk order
  std::vector<SampledToken> tokens;     // in chunk order; a finishing token is among them
  std::vector<Finish> finishes;         // after the tokens
};

}  // namespace kvasir::scheduler
