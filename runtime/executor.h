// The seam between the engine and whatever computes: a batch in, one sampled token per sampling
// chunk out. CpuExecutor serves; scripted and cost-model executors test.
#pragma once

#include "core/result.h"
#include "core/step_plan.h"
#include "runtime/batch.h"

namespace kvasir::runtime {

class Executor {
 public:
  virtual ~Executor() = default;
  /// Computes all chunks, writes their K and V, and samples the last row of each chunk that asks
  /// for logits. Errors: kInternal only (a failed execution ends the sequences of the batch with
  /// that error).
  [[nodiscard]] virtual Result<StepResult> execute(const Batch& batch) = 0;
};

}  // namespace kvasir::runtime
