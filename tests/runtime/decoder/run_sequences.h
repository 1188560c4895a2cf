// Drives a CpuExecutor as the engine would, but with schedules that a test chooses: which sequences
// compute how many tokens in which step, in which physical blocks, and what was in the arena
// before.
#pragma once

#include "core/request.h"
#include "kvcache/kv_storage.h"
#include "runtime/cpu_executor.h"
#include "tests/runtime/decoder/test_models.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvasir::runtime::test {

struct RunOptions {
  Isa isa = Isa::kScalar;
  kvcache::KvType kv_type = kvcache::KvType::kF32;
  std::uint32_t num_threads = 1;
  std::uint32_t block_tokens = 16;
  std::uint32_t num_blocks = 64;
  std::uint32_t max_step_tokens = 512;
  std::uint32_t max_sequences = 8;
};

/// One sequence and everything it has yielded so far.
struct TestSequence {
  Request request;
  std::vector<TokenId> tokens;  // prompt, then what was sampled
  /// The tables of all layer groups one after another, each of the same number of stripes.
  std::vector<BlockId> blocks;
  bool shares_blocks = false;  // then blocks behind a window are left as they are for others
  std::uint32_t num_computed = 0;
  bool keep_all_logits = false;
  std::vector<std::vector<float>> logits;  // [position][vocab_size]; empty where not kept
  std::vector<SampledToken> sampled;
  std::vector<PromptLogprobs> scores;  // one for each chunk that has any

  [[nodiscard]] std::uint32_t num_pending() const {
    return static_cast<std::uint32_t>(tokens.size()) - num_computed;
  }
};

/// A sequence's chunk of one step: at most so many of the tokens it has not computed yet.
struct ChunkOrder {
  TestSequence* sequence = nullptr;
  std::uint32_t max_tokens = 0;
};

class SequenceRunner {
 public:
  /// The whole arena starts as NaN patterns (all bits set), in every element type.
  SequenceRunner(const TestModel& model, const RunOptions& options);

  /// The next step makes this copy before it computes.
  void copy_before_step(const BlockCopy& copy) { copies_.push_back(copy); }
  /// Computes the chunks; a sequence whose last known token was computed gets the sampled one
  /// appended. Blocks that lie behind a window afterwards leave their table, as the KV manager has
  /// it, and are overwritten with NaN.
  void step(std::span<const ChunkOrder> chunks);
  /// Steps one sequence, `chunk_tokens` at most at a time, until it has `num_new_tokens` sampled
  /// tokens.
  void run_alone(TestSequence& sequence, std::uint32_t chunk_tokens, std::uint32_t num_new_tokens);

  /// Blocks first, first + stride, ... (mod num_blocks) for `num_tokens` tokens in all layer
  /// groups.
  [[nodiscard]] std::vector<BlockId> blocks(std::uint32_t num_tokens, std::uint32_t first,
                                            std::uint32_t stride = 1) const;
  /// Makes the first stripes of a table those of another.
  void share_stripes(const TestSequence& from, TestSequence& to, std::uint32_t num_stripes) const;
  /// Copies one stripe of every group before the next step.
  void copy_stripe_before_step(const TestSequence& from, const TestSequence& to,
                               std::uint32_t stripe, std::uint32_t num_tokens);
  [[nodiscard]] CpuExecutor& executor() { return *executor_; }

 private:
  /// Where a group's table is in a sequence's blocks.
  struct TablePlace {
    std::size_t begin = 0, size = 0, per_stripe = 0;
  };
  [[nodiscard]] TablePlace table_place(const TestSequence& sequence, std::size_t group) const;
  void drop_behind_windows(TestSequence& sequence);
  void keep_rows(const BatchChunk& chunk, TestSequence& sequence, std::size_t& row);

  const TestModel& model_;
  RunOptions options_;
  kvcache::KvStorage storage_;
  std::unique_ptr<CpuExecutor> executor_;
  std::vector<BlockCopy> copies_;  // of the next step
};

/// A greedy request, with logprobs.
Request greedy_request(std::vector<TokenId> prompt);
/// A sequence for it, in the given blocks.
TestSequence make_sequence(Request request, std::vector<BlockId> blocks, bool keep_all_logits);

/// Overwrites every tile with bytes of all ones: NaN in every element type.
void fill_with_nan(kvcache::KvStorage& storage);
/// The same of one block.
void fill_with_nan(kvcache::KvStorage& storage, BlockId block);

}  // namespace kvasir::runtime::test
