// The bounds that a plan keeps. Bytes are the KV view's; these are tokens and sequences.
#pragma once

#include <cstdint>

namespace kvasir::scheduler {

/// When a waiting sequence may run.
enum class AdmissionPolicy : std::uint8_t {
  kOptimistic,  // when what it is likely to need fits; preempted without loss when it needs more
  kReserve,     // when all it can come to need fits, and is kept for it: nothing is ever preempted
};

struct StepLimits {
  AdmissionPolicy admission = AdmissionPolicy::kOptimistic;
  std::uint32_t max_step_tokens =
      512;  // tokens computed in one step, decode and prefill together; >= 1
  std::uint32_t max_sequences = 64;              // running at once; >= 1
  std::uint32_t context_tokens = 0;              // prompt + generated of one sequence
  std::uint32_t preemptions_before_reserve = 3;  // past it a sequence is re-admitted only with its
                                                 // worst case reserved, and is then never preempted
};

}  // namespace kvasir::scheduler
