#include "cli/bench_workload.h"

#include "cli/startup_error.h"
#include "config/load.h"
#include "core/check.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace kvasir::cli {
namespace {

constexpr std::uint32_t kPrefillPrompt = 512;
constexpr std::uint32_t kDecodePrompt = 128;
constexpr std::array<std::uint32_t, 6> kDecodeSequences = {1, 2, 4, 8, 16, 32};
constexpr std::uint32_t kMixedSequences = 8;
constexpr std::uint32_t kMostSequences = 4096;  // as --max-sequences of serve
constexpr std::uint32_t kMostTokens = 1U << 24U;

struct Word {
  std::string kind;
  std::optional<std::uint32_t> number;
};

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw StartupError("command line: --workload: " + config::quoted(text) + " " + why);
}

Word split_word(const std::string& text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return {text, std::nullopt};
  const std::string digits = text.substr(colon + 1);
  std::uint32_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, number);
  if (read.ec != std::errc() || read.ptr != end || number == 0) {
    refuse(text, "has no whole number above 0 after the colon");
  }
  return {text.substr(0, colon), number};
}

void add_word(const std::string& text, const WorkloadOptions& options,
              std::vector<Workload>& workloads) {
  const Word word = split_word(text);
  Workload workload;
  if (word.kind == "prefill") {
    const std::uint32_t usual = options.prompt_tokens == 0 ? kPrefillPrompt : options.prompt_tokens;
    workload.prompt_tokens = word.number.value_or(usual);
    if (workload.prompt_tokens > kMostTokens) refuse(text, "is more than 16777216 tokens");
    workloads.push_back(workload);
    return;
  }
  const bool mixed = word.kind == "mixed";
  if (!mixed && word.kind != "decode") {
    refuse(text,
           "is no workload; allowed: prefill, prefill:TOKENS, decode, decode:SEQUENCES, "
           "mixed, mixed:SEQUENCES, with commas between");
  }
  if (word.number.value_or(1) > kMostSequences) {
    refuse(text, "is more than " + std::to_string(kMostSequences) + " sequences");
  }
  workload.kind = mixed ? WorkloadKind::kMixed : WorkloadKind::kDecode;
  workload.prompt_tokens =
      mixed || options.prompt_tokens == 0 ? kDecodePrompt : options.prompt_tokens;
  if (mixed) {
    workload.arriving_prompt_tokens =
        options.prompt_tokens == 0 ? kPrefillPrompt : options.prompt_tokens;
  } else {
    workload.new_tokens = options.new_tokens;
  }
  std::vector<std::uint32_t> counts = {word.number.value_or(kMixedSequences)};
  if (!mixed && !word.number) counts.assign(kDecodeSequences.begin(), kDecodeSequences.end());
  for (const std::uint32_t count : counts) {
    workload.sequences = count;
    workloads.push_back(workload);
  }
}

}  // namespace

std::string_view workload_kind_name(WorkloadKind kind) {
  switch (kind) {
    case WorkloadKind::kPrefill:
      return "prefill";
    case WorkloadKind::kDecode:
      return "decode";
    case WorkloadKind::kMixed:
      break;
  }
  return "mixed";
}

std::string workload_name(const Workload& workload) {
  const bool prefill = workload.kind == WorkloadKind::kPrefill;
  return std::string(workload_kind_name(workload.kind)) + ":" +
         std::to_string(prefill ? workload.prompt_tokens : workload.sequences);
}

std::vector<Workload> parse_workloads(const WorkloadOptions& options) {
  std::vector<Workload> workloads;
  for (std::size_t begin = 0; begin <= options.names.size();) {
    const std::size_t end = std::min(options.names.find(',', begin), options.names.size());
    add_word(options.names.substr(begin, end - begin), options, workloads);
    begin = end + 1;
  }
  return workloads;
}

std::uint32_t sequences_at_once(const Workload& workload) {
  return workload.sequences + (workload.kind == WorkloadKind::kMixed ? 1 : 0);
}

std::uint64_t longest_sequence_tokens(const Workload& workload, std::uint32_t step_tokens) {
  const std::uint64_t prompt = workload.prompt_tokens;
  if (workload.kind != WorkloadKind::kMixed) return prompt + workload.new_tokens;
  KVASIR_CHECK(workload.sequences < step_tokens);
  const std::uint32_t room = step_tokens - workload.sequences;
  const std::uint32_t steps = (workload.arriving_prompt_tokens + room - 1) / room;
  return std::max<std::uint64_t>(prompt + steps, workload.arriving_prompt_tokens);
}

void check_workload(const Workload& workload, const WorkloadLimits& limits) {
  const std::string origin = "command line: --workload: " + workload_name(workload);
  const std::uint32_t sequences = sequences_at_once(workload);
  if (sequences > limits.step_tokens) {
    throw StartupError(origin + ": " + std::to_string(sequences) +
                       " sequences need as many tokens in a step; --step-tokens is " +
                       std::to_string(limits.step_tokens));
  }
  const std::uint64_t tokens = longest_sequence_tokens(workload, limits.step_tokens);
  if (tokens > limits.context_tokens) {
    throw StartupError(origin + ": " + std::to_string(tokens) +
                       " tokens are more than the context of " +
                       std::to_string(limits.context_tokens));
  }
}

}  // namespace kvasir::cli
