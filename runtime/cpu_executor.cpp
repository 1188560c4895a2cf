#include "runtime/cpu_executor.h"

#include "core/check.h"
#include "runtime/kernels/dispatch.h"
#include "runtime/model/decoder.h"
#include "runtime/sampling/prompt_score.h"
#include "runtime/sampling/sampler.h"
#include "runtime/worker_team.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace kvasir::runtime {
namespace {

DecoderLimits decoder_limits(const CpuExecutorOptions& options) {
  return {.num_threads = options.num_threads,
          .max_step_tokens = options.max_step_tokens,
          .max_chunks = options.max_sequences,
          .max_logits_rows = options.max_sequences,
          .max_context_tokens = options.max_context_tokens};
}

/// What is made of a row's logits.
enum class RowUse : std::uint8_t {
  kNothing,  // only kept, for tests
  kSample,
  kScore,  // the next token of the prompt
};

/// A row of the head: a token of the batch, and where what is made of it goes.
struct HeadRow {
  std::uint32_t token_index = 0;
  std::uint32_t chunk = 0;
  RowUse use = RowUse::kNothing;
  std::uint32_t result_index = 0;  // into StepResult::sampled or ::prompts
  std::uint32_t scored = 0;        // kScore: into PromptLogprobs::tokens
};

}  // namespace

struct CpuExecutor::Impl {
  Impl(const CpuExecutorOptions& opts, const ModelConfig& model_config, const ModelWeights& weights,
       kvcache::KvStorage& kv_storage)
      : options(opts),
        config(model_config),
        storage(kv_storage),
        kernels(kernels_for(opts.isa)),
        team(opts.num_threads),
        decoder(decoder_limits(opts), model_config, weights, kernels, kv_storage, team),
        scratch(opts.num_threads, SamplerScratch(model_config.vocab_size)) {
    rows.reserve(std::max(opts.max_sequences, opts.max_step_tokens));
    token_indices.reserve(rows.capacity());
  }

  void check(const Batch& batch) const;
  void check_chunk(const BatchChunk& chunk) const;
  void check_table(const BatchChunk& chunk, std::uint32_t group) const;
  void collect_rows(const Batch& batch, StepResult& result);
  void collect_rows_of(const BatchChunk& chunk, std::uint32_t chunk_index,
                       std::uint32_t first_token, StepResult& result);
  void use_rows(const Batch& batch, std::size_t first_row, std::span<const HeadRow> group,
                StepResult& result);
  void use_row(const BatchChunk& chunk, const HeadRow& row, std::span<const float> logits,
               SamplerScratch& worker_scratch, StepResult& result) const;

  CpuExecutorOptions options;
  const ModelConfig& config;
  kvcache::KvStorage& storage;
  const KernelTable& kernels;
  WorkerTeam team;
  Decoder decoder;
  std::vector<SamplerScratch> scratch;       // [num_threads]
  std::vector<HeadRow> rows;                 // of the current batch
  std::vector<std::uint32_t> token_indices;  // [rows]
  bool keep = false;
  std::vector<float> kept;  // [kept rows, vocab_size]
};

CpuExecutor::CpuExecutor(const CpuExecutorOptions& options, const ModelConfig& config,
                         const ModelWeights& weights, kvcache::KvStorage& storage)
    : impl_(std::make_unique<Impl>(options, config, weights, storage)) {
  const kvcache::KvGeometry& geometry = storage.geometry();
  const kvcache::KvGeometry expected = config.kv_geometry(geometry.type, geometry.block_tokens);
  KVASIR_CHECK(geometry.groups == expected.groups);
  KVASIR_CHECK(geometry.group_of_layer == expected.group_of_layer);
}

CpuExecutor::~CpuExecutor() = default;

Result<StepResult> CpuExecutor::execute(const Batch& batch) {
  Impl& self = *impl_;
  self.check(batch);
  self.kept.clear();
  StepResult result;
  if (batch.chunks.empty()) return result;
  self.collect_rows(batch, result);
  for (const BlockCopy& copy : batch.copies) {
    self.storage.copy_block(copy.source, copy.destination);
  }
  self.decoder.forward(batch, self.token_indices);
  const std::span<const HeadRow> rows(self.rows);
  for (std::size_t first = 0; first < rows.size(); first += self.options.max_sequences) {
    const std::size_t count =
        std::min<std::size_t>(self.options.max_sequences, rows.size() - first);
    self.use_rows(batch, first, rows.subspan(first, count), result);
  }
  return result;
}

bool CpuExecutor::same_slots(BlockId a, BlockId b, std::uint32_t num_slots) const {
  return impl_->storage.same_slots(a, b, num_slots);
}

std::uint64_t CpuExecutor::buffer_bytes(const CpuExecutorOptions& options,
                                        const ModelConfig& config, const ModelWeights& weights) {
  const std::uint64_t sampler_bytes = SamplerScratch::bytes(config.vocab_size);
  const std::uint64_t row_bytes = std::max(options.max_sequences, options.max_step_tokens) *
                                  (sizeof(HeadRow) + sizeof(std::uint32_t));
  return Decoder::buffer_bytes(decoder_limits(options), config, weights, kernels_for(options.isa)) +
         options.num_threads * sampler_bytes + row_bytes;
}

void CpuExecutor::keep_logits(bool on) { impl_->keep = on; }

std::span<const float> CpuExecutor::kept_logits(std::size_t row) const {
  KVASIR_CHECK(row < num_kept_logits());
  return {&impl_->kept[row * impl_->config.vocab_size], impl_->config.vocab_size};
}

std::size_t CpuExecutor::num_kept_logits() const {
  return impl_->kept.size() / impl_->config.vocab_size;
}

/// What the engine promises. A violation is our own bug, and reading on would corrupt other
/// sequences' blocks.
void CpuExecutor::Impl::check(const Batch& batch) const {
  KVASIR_CHECK(batch.chunks.size() <= options.max_sequences,
               batch.chunks.size() << " chunks, at most " << options.max_sequences);
  std::uint64_t num_tokens = 0;
  for (const BatchChunk& chunk : batch.chunks) {
    check_chunk(chunk);
    num_tokens += chunk.num_tokens;
  }
  KVASIR_CHECK(num_tokens == batch.num_tokens, num_tokens << " in chunks, " << batch.num_tokens);
  KVASIR_CHECK(num_tokens <= options.max_step_tokens,
               num_tokens << " tokens, at most " << options.max_step_tokens);
}

void CpuExecutor::Impl::check_chunk(const BatchChunk& chunk) const {
  const std::uint64_t end = std::uint64_t{chunk.first_position} + chunk.num_tokens;
  const std::uint64_t context =
      options.max_context_tokens == 0 ? config.context_tokens : options.max_context_tokens;
  KVASIR_CHECK(chunk.request != nullptr);
  KVASIR_CHECK(chunk.num_tokens > 0);
  KVASIR_CHECK(end <= chunk.tokens.size(), end << " of " << chunk.tokens.size() << " tokens");
  KVASIR_CHECK(end <= context, end << " positions, at most " << context);
  KVASIR_CHECK(chunk.first_logits_row <= chunk.num_tokens);
  KVASIR_CHECK(chunk.num_prompt_tokens <= chunk.tokens.size());
  for (std::uint32_t group = 0; group < storage.geometry().groups.size(); ++group) {
    check_table(chunk, group);
  }
  for (const TokenId token : chunk.tokens.subspan(chunk.first_position, chunk.num_tokens)) {
    KVASIR_CHECK(token < config.vocab_size, "token " << token);
  }
}

/// Blocks behind the window may be gone; a block that is there is one of the arena's.
void CpuExecutor::Impl::check_table(const BatchChunk& chunk, std::uint32_t group) const {
  const kvcache::KvGeometry& geometry = storage.geometry();
  const std::span<const BlockId> table = chunk.block_tables[group];
  const std::uint64_t end = std::uint64_t{chunk.first_position} + chunk.num_tokens;
  const std::uint64_t per_stripe = geometry.blocks_per_stripe(group);
  const std::uint64_t blocks = geometry.stripes_for(end) * per_stripe;
  const std::uint64_t first_seen =
      geometry.first_visible_stripe(group, chunk.first_position) * per_stripe;
  KVASIR_CHECK(blocks <= table.size(),
               blocks << " blocks needed, " << table.size() << " in the table of group " << group);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    if (i < first_seen && table[i] == kNoBlock) continue;
    KVASIR_CHECK(value_of(table[i]) < storage.num_blocks(),
                 "block " << value_of(table[i]) << " in place " << i << " of group " << group);
  }
}

/// The rows that the head computes, in batch order: those to sample, those that score a prompt's
/// tokens, and with keep_logits every wanted one. Makes room in `result` for what comes of them.
void CpuExecutor::Impl::collect_rows(const Batch& batch, StepResult& result) {
  rows.clear();
  std::uint32_t first_token = 0;
  for (std::uint32_t c = 0; c < batch.chunks.size(); ++c) {
    collect_rows_of(batch.chunks[c], c, first_token, result);
    first_token += batch.chunks[c].num_tokens;
  }
  token_indices.clear();
  for (const HeadRow& row : rows) token_indices.push_back(row.token_index);
}

void CpuExecutor::Impl::collect_rows_of(const BatchChunk& chunk, std::uint32_t chunk_index,
                                        std::uint32_t first_token, StepResult& result) {
  const std::uint32_t scored_end = chunk.end_of_scored_rows();
  if (chunk.first_logits_row < scored_end) {
    const std::uint32_t count = scored_end - chunk.first_logits_row;
    PromptLogprobs& scores = result.prompts.emplace_back();
    scores.sequence = chunk.sequence;
    scores.first_token = chunk.first_position + chunk.first_logits_row + 1;
    scores.tokens.resize(count);
    scores.num_top = std::min(*chunk.request->prompt_logprobs, config.vocab_size);
    scores.top.resize(std::size_t{count} * scores.num_top);
  }
  for (std::uint32_t i = chunk.first_logits_row; i < chunk.num_tokens; ++i) {
    HeadRow row{.token_index = first_token + i, .chunk = chunk_index};
    if (i < scored_end) {
      row.use = RowUse::kScore;
      row.result_index = static_cast<std::uint32_t>(result.prompts.size() - 1);
      row.scored = i - chunk.first_logits_row;
    } else if (i + 1 == chunk.num_tokens && chunk.samples()) {
      row.use = RowUse::kSample;
      row.result_index = static_cast<std::uint32_t>(result.sampled.size());
      result.sampled.emplace_back();
    }
    if (row.use != RowUse::kNothing || keep) rows.push_back(row);
  }
}

/// Head, and sampler or scores, for as many rows as there is room for logits; `group` starts at
/// `first_row`.
void CpuExecutor::Impl::use_rows(const Batch& batch, std::size_t first_row,
                                 std::span<const HeadRow> group, StepResult& result) {
  decoder.head(first_row, group.size());
  if (keep) {
    for (std::size_t r = 0; r < group.size(); ++r) {
      const std::span<const float> logits = decoder.logits(r);
      kept.insert(kept.end(), logits.begin(), logits.end());
    }
  }
  const auto use_range = [&](std::uint32_t worker) {
    const WorkRange range = split_range(group.size(), 1, worker, options.num_threads);
    for (std::size_t r = range.begin; r < range.end; ++r) {
      use_row(batch.chunks[group[r].chunk], group[r], decoder.logits(r), scratch[worker], result);
    }
  };
  if (group.size() == 1) {
    for (std::uint32_t worker = 0; worker < options.num_threads; ++worker) use_range(worker);
    return;
  }
  team.run(std::cref(use_range));
}

void CpuExecutor::Impl::use_row(const BatchChunk& chunk, const HeadRow& row,
                                std::span<const float> logits, SamplerScratch& worker_scratch,
                                StepResult& result) const {
  if (row.use == RowUse::kSample) {
    SampleInput input;
    input.sequence = chunk.sequence;
    input.logits = logits;
    input.history = chunk.tokens;
    input.num_prompt_tokens = chunk.num_prompt_tokens;
    input.request = chunk.request;
    result.sampled[row.result_index] = sample(kernels, input, worker_scratch);
  } else if (row.use == RowUse::kScore) {
    PromptLogprobs& scores = result.prompts[row.result_index];
    const std::span<TokenLogprob> top =
        std::span(scores.top).subspan(std::size_t{row.scored} * scores.num_top, scores.num_top);
    scores.tokens[row.scored] = score_prompt_token(
        kernels, logits, chunk.tokens[scores.first_token + row.scored], top, worker_scratch);
  }
}

}  // namespace kvasir::runtime
