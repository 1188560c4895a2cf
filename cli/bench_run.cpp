#include "cli/bench_run.h"

#include "core/check.h"
#include "core/request.h"
#include "core/rng.h"
#include "core/seconds.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace kvasir::cli {
namespace {

constexpr std::uint64_t kPromptSeed = 20'260'101;  // any; equal prompts in every run

/// Known tokens and blocks of one sequence. Computed again from `num_computed` on, it overwrites
/// its keys and values with the same ones.
struct BenchSequence {
  Request request;
  std::vector<TokenId> tokens;               // prompt, then what was sampled
  std::vector<std::vector<BlockId>> blocks;  // [groups]: stripe * blocks_per_stripe + i
  std::uint32_t num_computed = 0;

  [[nodiscard]] std::uint32_t num_pending() const {
    return static_cast<std::uint32_t>(tokens.size()) - num_computed;
  }
  [[nodiscard]] bool in_prompt() const { return num_computed < request.prompt_tokens.size(); }
  /// Forgets what was sampled after the first `num_tokens` tokens.
  void rewind(std::uint32_t num_tokens) {
    tokens.resize(num_tokens);
    num_computed = std::min(num_computed, num_tokens - 1);
  }
};

struct SequenceShape {
  std::uint32_t prompt_tokens = 0;
  std::uint64_t num_stripes = 0;
  std::vector<std::uint32_t> blocks_per_stripe;  // [groups]
};

/// Stripes of the longest sequence of a workload, for every group: a round begins where the one
/// before began, and then needs again what a window would have given back.
std::uint64_t stripes_of_one(const Workload& workload, const kvcache::KvGeometry& geometry,
                             std::uint32_t step_tokens) {
  return geometry.stripes_for(longest_sequence_tokens(workload, step_tokens));
}

SequenceShape shape_of(std::uint64_t num_stripes, const kvcache::KvGeometry& geometry) {
  SequenceShape shape;
  shape.num_stripes = num_stripes;
  for (std::size_t group = 0; group < geometry.groups.size(); ++group) {
    shape.blocks_per_stripe.push_back(geometry.blocks_per_stripe(group));
  }
  return shape;
}

/// Sequence `index` of `count`. Block b of sequence s is s + b * count: neighbours in a sequence
/// are no neighbours in memory, as it is after a while in a daemon.
BenchSequence make_sequence(const SequenceShape& shape, std::uint32_t index, std::uint32_t count,
                            std::uint32_t vocab_size) {
  BenchSequence sequence;
  for (std::uint32_t i = 0; i < shape.prompt_tokens; ++i) {
    const std::uint64_t bits = mix64(mix64(kPromptSeed ^ index) ^ i);
    sequence.request.prompt_tokens.push_back(static_cast<TokenId>(bits % vocab_size));
  }
  sequence.request.sampling.temperature = 0.0F;
  sequence.request.stop.max_tokens = 1U << 30U;  // the workload ends it
  sequence.tokens = sequence.request.prompt_tokens;
  sequence.blocks.resize(shape.blocks_per_stripe.size());
  std::uint64_t next = 0;
  for (std::uint64_t stripe = 0; stripe < shape.num_stripes; ++stripe) {
    for (std::size_t group = 0; group < sequence.blocks.size(); ++group) {
      for (std::uint32_t i = 0; i < shape.blocks_per_stripe[group]; ++i, ++next) {
        sequence.blocks[group].push_back(BlockId{static_cast<std::uint32_t>(index + next * count)});
      }
    }
  }
  return sequence;
}

class WorkloadRunner {
 public:
  WorkloadRunner(const BenchSetup& setup, const Workload& workload,
                 const kvcache::KvGeometry& geometry)
      : setup_(setup), workload_(workload) {
    const std::uint32_t count = sequences_at_once(workload);
    SequenceShape shape = shape_of(stripes_of_one(workload, geometry, setup.step_tokens), geometry);
    for (std::uint32_t i = 0; i < count; ++i) {
      const bool arriving = i >= workload.sequences;
      shape.prompt_tokens = arriving ? workload.arriving_prompt_tokens : workload.prompt_tokens;
      sequences_.push_back(make_sequence(shape, i, count, setup.vocab_size));
    }
  }

  WorkloadTimes run() {
    tell(0);
    if (workload_.kind == WorkloadKind::kPrefill) {
      run_rounds([this] { return prefill(1); });
      return std::move(times_);
    }
    TimedRounds prefill_times;
    prefill(workload_.sequences);  // warm-up: touches the blocks
    seconds_ = 0.0;
    prefill_times.tokens = prefill(workload_.sequences);
    prefill_times.seconds = {seconds_};
    if (workload_.kind == WorkloadKind::kDecode) {
      run_rounds([this] { return decode(); });
    } else {
      run_rounds([this] { return mix(); });
    }
    times_.prefill = std::move(prefill_times);
    return std::move(times_);
  }

 private:
  void tell(std::uint32_t round) const {
    if (setup_.progress) setup_.progress(round);
  }

  /// `round` computes all steps of one round, adds to seconds_, and returns the tokens of it.
  template <typename Round>
  void run_rounds(const Round& round) {
    for (std::uint32_t i = 0; i <= setup_.rounds; ++i) {
      if (i > 0) tell(i);
      times_.steps.clear();
      seconds_ = 0.0;
      times_.timed.tokens = round();
      if (i > 0) times_.timed.seconds.push_back(seconds_);
    }
  }

  /// Computes the prompts of the first `count` sequences from nothing, several in a step where
  /// there is room, and samples a token of each.
  std::uint64_t prefill(std::uint32_t count) {
    std::uint64_t tokens = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      BenchSequence& sequence = sequences_[i];
      sequence.tokens = sequence.request.prompt_tokens;
      sequence.num_computed = 0;
      tokens += sequence.tokens.size();
    }
    for (std::uint32_t next = 0; next < count;) {
      begin_step();
      for (std::uint32_t i = next; i < count && room() > 0; ++i) add_chunk(i);
      end_step();
      while (next < count && !sequences_[next].in_prompt()) ++next;
    }
    return tokens;
  }

  /// Every sequence one token further, new_tokens times, from the end of the prompts.
  std::uint64_t decode() {
    rewind_decoding();
    for (std::uint32_t i = 0; i < workload_.new_tokens; ++i) decode_step();
    return std::uint64_t{workload_.sequences} * workload_.new_tokens;
  }

  /// The last sequence's prompt in what room the others leave.
  std::uint64_t mix() {
    rewind_decoding();
    BenchSequence& arriving = sequences_.back();
    arriving.tokens = arriving.request.prompt_tokens;
    arriving.num_computed = 0;
    std::uint64_t tokens = arriving.tokens.size();
    while (arriving.in_prompt()) {
      decode_step(true);
      tokens += workload_.sequences;
    }
    return tokens;
  }

  void decode_step(bool with_arriving = false) {
    begin_step();
    for (std::uint32_t i = 0; i < workload_.sequences; ++i) add_chunk(i);
    if (with_arriving) add_chunk(workload_.sequences);
    end_step();
  }

  /// To the prompt and its first sampled token.
  void rewind_decoding() {
    for (std::uint32_t i = 0; i < workload_.sequences; ++i) {
      sequences_[i].rewind(workload_.prompt_tokens + 1);
    }
  }

  [[nodiscard]] std::uint32_t room() const { return setup_.step_tokens - batch_.num_tokens; }

  void begin_step() {
    batch_.chunks.clear();
    batch_.num_tokens = 0;
    shape_ = {};
  }

  /// As much of what the sequence has not computed as the step has room for.
  void add_chunk(std::uint32_t index) {
    const BenchSequence& sequence = sequences_[index];
    runtime::BatchChunk chunk;
    chunk.sequence = SequenceId{index};
    chunk.first_position = sequence.num_computed;
    chunk.num_tokens = std::min(sequence.num_pending(), room());
    KVASIR_CHECK(chunk.num_tokens > 0);
    const bool samples = chunk.num_tokens == sequence.num_pending();
    chunk.first_logits_row = samples ? chunk.num_tokens - 1 : chunk.num_tokens;
    chunk.tokens = sequence.tokens;
    chunk.num_prompt_tokens = static_cast<std::uint32_t>(sequence.request.prompt_tokens.size());
    std::ranges::copy(sequence.blocks, chunk.block_tables.begin());
    chunk.request = &sequence.request;
    batch_.num_tokens += chunk.num_tokens;
    batch_.chunks.push_back(chunk);
    shape_.tokens += chunk.num_tokens;
    shape_.head_rows += samples ? 1 : 0;
    shape_.kv_tokens += std::uint64_t{chunk.first_position} + chunk.num_tokens;
  }

  void end_step() {
    const TimePoint start = setup_.clock->now();
    const Result<StepResult> result = setup_.executor->execute(batch_);
    seconds_ += to_seconds(setup_.clock->now() - start);
    if (!result) throw std::runtime_error("bench: a step failed: " + result.error().message);
    KVASIR_CHECK(result->sampled.size() == shape_.head_rows);
    times_.steps.push_back(shape_);
    for (const runtime::BatchChunk& chunk : batch_.chunks) {
      sequences_[value_of(chunk.sequence)].num_computed += chunk.num_tokens;
    }
    for (const SampledToken& sampled : result->sampled) {
      sequences_[value_of(sampled.sequence)].tokens.push_back(sampled.token);
    }
  }

  const BenchSetup& setup_;
  const Workload& workload_;
  std::vector<BenchSequence> sequences_;
  runtime::Batch batch_;
  StepShape shape_;       // of batch_
  double seconds_ = 0.0;  // of the steps of this round so far
  WorkloadTimes times_;
};

}  // namespace

std::uint64_t bench_blocks(const Workload& workload, const kvcache::KvGeometry& geometry,
                           std::uint32_t step_tokens) {
  return sequences_at_once(workload) * stripes_of_one(workload, geometry, step_tokens) *
         geometry.blocks_per_stripes();
}

WorkloadTimes run_workload(const BenchSetup& setup, const Workload& workload,
                           const kvcache::KvGeometry& geometry) {
  return WorkloadRunner(setup, workload, geometry).run();
}

}  // namespace kvasir::cli
