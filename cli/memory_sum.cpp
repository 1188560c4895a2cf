// The constants of the sum, each with where it comes from, and the sentences made of it.
#include "cli/memory_sum.h"

#include <cstdio>

namespace kvasir::cli {
namespace {

/// Code, libraries (gRPC and its friends), thread stacks in use and the allocator's slack; resident
/// size of a process that serves a tiny model is near 40 MiB.
constexpr std::uint64_t kProcessBytes = 64ULL << 20U;
/// Both tokenizer objects and the byte table: a 262 144-word vocabulary takes about 260 MB, or 1
/// KiB a word.
constexpr std::uint64_t kTokenizerBytesPerWord = 1024;
/// A token of a live sequence is held as an id by the door, the scheduler and the engine, and again
/// as text (about 4 bytes) by the stream.
constexpr std::uint64_t kSequenceBytesPerToken = 3 * 4 + 4;
/// Request, sink, block table head, queue entry, connection buffers.
constexpr std::uint64_t kSequenceFixedBytes = 16ULL << 10U;

}  // namespace

std::uint64_t MemorySum::total_bytes() const {
  std::uint64_t total = 0;
  for (const MemoryPart& part : parts) total += part.bytes;
  return total;
}

MemorySum memory_sum(const MemoryInputs& in) {
  // A running sequence may hold a whole context; those that wait hold their prompts, of which a
  // full queue of longest ones is not to be expected: they are counted at a quarter of the context.
  // So this part is an estimate and no bound: a full queue of longest prompts takes four times as
  // much, and bodies that are being received (bounded by the door) are not in it. Keys and values
  // are the part that is proved.
  const std::uint64_t running =
      in.max_sequences * (kSequenceFixedBytes + in.context_tokens * kSequenceBytesPerToken);
  const std::uint64_t waiting =
      in.max_waiting * (kSequenceFixedBytes + in.context_tokens / 4 * kSequenceBytesPerToken);
  return {{
      {"weights", in.weight_bytes, "as they lie in memory; the file is not kept"},
      {"KV arena", in.kv_blocks * in.kv_block_bytes,
       std::to_string(in.kv_blocks) + " blocks of " + std::to_string(in.kv_block_bytes) + " bytes"},
      {"compute buffers", in.executor_buffer_bytes, "sized for step-tokens and max-sequences"},
      {"tokenizer", in.vocabulary_tokens * kTokenizerBytesPerWord,
       "estimate: 1 KiB for each of " + std::to_string(in.vocabulary_tokens) + " words"},
      {"sequences and mailboxes", running + waiting,
       "estimate, no bound: a context for each running, a quarter for each waiting sequence"},
      {"process", kProcessBytes, "estimate: code, libraries, stacks"},
  }};
}

std::string memory_refusal(const MemorySum& sum, const MemoryLimit& limit) {
  if (limit.limit_bytes == 0 || sum.total_bytes() <= limit.limit_bytes) return {};
  std::string text = "does not fit into memory: " + bytes_text(sum.total_bytes()) + " needed, " +
                     bytes_text(limit.limit_bytes) + " is the " + limit.reason + "; ";
  for (std::size_t i = 0; i < sum.parts.size(); ++i) {
    text += (i == 0 ? "" : " + ") + sum.parts[i].name + " " + bytes_text(sum.parts[i].bytes);
  }
  return text;
}

std::string memory_warning(const MemorySum& sum, const MemoryLimit& limit) {
  if (limit.available_bytes == 0 || sum.total_bytes() <= limit.available_bytes) return {};
  return "memory: " + bytes_text(sum.total_bytes()) + " may be used, but only " +
         bytes_text(limit.available_bytes) + " are available now (MemAvailable)";
}

std::string bytes_text(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  char text[48];
  if (bytes >= 1ULL << 30U) {
    std::snprintf(text, sizeof(text), "%.2f GiB", value / static_cast<double>(1ULL << 30U));
  } else if (bytes >= 1ULL << 20U) {
    std::snprintf(text, sizeof(text), "%.1f MiB", value / static_cast<double>(1ULL << 20U));
  } else {
    std::snprintf(text, sizeof(text), "%llu bytes", static_cast<unsigned long long>(bytes));
  }
  return text;
}

}  // namespace kvasir::cli
