// The start-up sum of everything that the daemon will hold at its bounds, against what the machine
// or the cgroup gives. Pure arithmetic: who measures the parts and what happens on a refusal is
// serve's.
#pragma once

#include "cli/machine.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir::cli {

struct MemoryPart {
  std::string name;
  std::uint64_t bytes = 0;
  std::string how;  // where the number comes from: "file size", "estimate: ..."
};

struct MemorySum {
  std::vector<MemoryPart> parts;
  [[nodiscard]] std::uint64_t total_bytes() const;
};

/// What the sum is made of.
struct MemoryInputs {
  std::uint64_t weight_bytes = 0;
  std::uint64_t kv_block_bytes = 0;
  std::uint64_t kv_blocks = 0;
  std::uint64_t executor_buffer_bytes = 0;
  std::uint64_t vocabulary_tokens = 0;
  std::uint64_t max_sequences = 0;
  std::uint64_t max_waiting = 0;
  std::uint64_t context_tokens = 0;
};
[[nodiscard]] MemorySum memory_sum(const MemoryInputs& inputs);

/// Empty when the sum fits; else one line with every number. An unknown limit fits.
[[nodiscard]] std::string memory_refusal(const MemorySum& sum, const MemoryLimit& limit);
/// Empty, or one line that says what will be swapped or killed when the sum is used up.
[[nodiscard]] std::string memory_warning(const MemorySum& sum, const MemoryLimit& limit);

/// 1610612736 as "1.50 GiB", and below 1 MiB in bytes.
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

}  // namespace kvasir::cli
