// What `kvasir bench` is asked to run: names like "decode:8" to numbers of prompts, sequences and
// tokens, checked against the model and the step. Running them is bench_run.h's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::cli {

enum class WorkloadKind : std::uint8_t {
  kPrefill,  // one prompt
  kDecode,   // sequences that have their prompts behind them, one token each in a step
  kMixed,    // as decode, while another sequence's prompt is computed in the same steps
};
[[nodiscard]] std::string_view workload_kind_name(WorkloadKind kind);  // "prefill", ...

struct Workload {
  WorkloadKind kind = WorkloadKind::kPrefill;
  std::uint32_t sequences = 1;               // that decode; 1 for prefill
  std::uint32_t prompt_tokens = 0;           // of each of them; of the one prompt for prefill
  std::uint32_t new_tokens = 0;              // timed steps of decode; 0 otherwise
  std::uint32_t arriving_prompt_tokens = 0;  // mixed: of the prompt that is computed meanwhile
  friend bool operator==(const Workload&, const Workload&) = default;
};

/// "prefill:512", "decode:8", "mixed:8": what an option would say to get it.
[[nodiscard]] std::string workload_name(const Workload& workload);

struct WorkloadOptions {
  std::string names = "prefill,decode,mixed";  // with commas; each may have ":N" behind it
  std::uint32_t prompt_tokens = 0;             // 0: 512 for prefill and mixed, 128 for decode
  std::uint32_t new_tokens = 128;
};

/// prefill:N is a prompt of N tokens; decode:N and mixed:N are N sequences. Without a number,
/// prefill takes the option's prompt, decode is 1, 2, 4, 8, 16 and 32 sequences, and mixed is 8.
/// Throws StartupError naming the word and what is allowed.
[[nodiscard]] std::vector<Workload> parse_workloads(const WorkloadOptions& options);

/// Sequences that have blocks at once.
[[nodiscard]] std::uint32_t sequences_at_once(const Workload& workload);
/// Tokens in the cache of the longest of them, at the end of a round with steps of so many tokens.
/// Requires: sequences_at_once() <= step_tokens.
[[nodiscard]] std::uint64_t longest_sequence_tokens(const Workload& workload,
                                                    std::uint32_t step_tokens);

struct WorkloadLimits {
  std::uint32_t context_tokens = 0;
  std::uint32_t step_tokens = 0;
};
/// Throws StartupError for a workload that is longer than the context or has more sequences than a
/// step has tokens.
void check_workload(const Workload& workload, const WorkloadLimits& limits);

}  // namespace kvasir::cli
