// The seam between the engine and whatever computes: a batch in, sampled tokens and logprobs of
// prompts out. CpuExecutor serves; scripted and cost-model executors test.
#pragma once

#include "core/result.h"
#include "core/step_plan.h"
#include "runtime/batch.h"

namespace kvasir::runtime {

class Executor {
 public:
  virtual ~Executor() = default;
  /// Copies the blocks that are to be copied, computes all chunks, writes their K and V, and
  /// samples the last row of each chunk that ends at its sequence's last known token and asks for
  /// logits; of the rows before it those of the prompt give prompt logprobs, where the request
  /// wants them. Errors: kInternal only (a failed execution ends the sequences of the batch with
  /// that error).
  [[nodiscard]] virtual Result<StepResult> execute(const Batch& batch) = 0;
  /// Whether the first `num_slots` slots of two blocks hold the same keys and values, byte for
  /// byte.
  [[nodiscard]] virtual bool same_slots(BlockId a, BlockId b, std::uint32_t num_slots) const = 0;
};

}  // namespace kvasir::runtime
