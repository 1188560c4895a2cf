// The bounds that a plan keeps. Bytes are the KV view's; these are tokens and sequences.
#pragma once

#include <cstdint>

namespace kvasir::scheduler {

struct StepLimits {
  std::uint32_t max_step_tokens =
      512;  // tokens computed in one step, decode and prefill together; >= 1
  std::uint32_t max_sequences = 64;              // running at once; >= 1
  std::uint32_t context_tokens = 0;              // prompt + generated of one sequence
  std::uint32_t preemptions_before_reserve = 3;  // past it a sequence is re-admitted only with its
                                                 // worst case reserved, and is then never preempted
};

}  // namespace kvasir::scheduler
