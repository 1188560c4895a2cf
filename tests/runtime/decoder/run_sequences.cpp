#include "tests/runtime/decoder/run_sequences.h"

#include "core/check.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace kvasir::runtime::test {

SequenceRunner::SequenceRunner(const TestModel& model, const RunOptions& options)
    : model_(model),
      options_(options),
      storage_(model.config.kv_geometry(options.kv_type, options.block_tokens),
               options.num_blocks) {
  fill_with_nan(storage_);
  CpuExecutorOptions executor_options;
  executor_options.num_threads = options.num_threads;
  executor_options.max_step_tokens = options.max_step_tokens;
  executor_options.max_sequences = options.max_sequences;
  executor_options.isa = options.isa;
  executor_ =
      std::make_unique<CpuExecutor>(executor_options, model.config, model.weights, storage_);
  executor_->keep_logits(true);
}

void SequenceRunner::step(std::span<const ChunkOrder> chunks) {
  Batch batch;
  batch.copies = std::exchange(copies_, {});
  for (const ChunkOrder& order : chunks) {
    TestSequence& sequence = *order.sequence;
    BatchChunk chunk;
    chunk.sequence = SequenceId{batch.chunks.size()};
    chunk.first_position = sequence.num_computed;
    chunk.num_tokens = std::min(order.max_tokens, sequence.num_pending());
    KVASIR_CHECK(chunk.num_tokens > 0);
    const bool reaches_end = chunk.num_tokens == sequence.num_pending();
    chunk.first_logits_row = reaches_end ? chunk.num_tokens - 1 : chunk.num_tokens;
    if (sequence.keep_all_logits || sequence.request.prompt_logprobs) chunk.first_logits_row = 0;
    chunk.tokens = sequence.tokens;
    chunk.num_prompt_tokens = static_cast<std::uint32_t>(sequence.request.prompt_tokens.size());
    for (std::size_t group = 0; group < storage_.geometry().groups.size(); ++group) {
      const TablePlace place = table_place(sequence, group);
      chunk.block_tables[group] = std::span(sequence.blocks).subspan(place.begin, place.size);
    }
    chunk.request = &sequence.request;
    batch.num_tokens += chunk.num_tokens;
    batch.chunks.push_back(chunk);
  }
  auto result = executor_->execute(batch);
  if (!result) throw std::runtime_error(result.error().message);

  std::size_t row = 0;
  std::size_t next_sampled = 0;
  std::size_t next_prompt = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    TestSequence& sequence = *chunks[i].sequence;
    const BatchChunk& chunk = batch.chunks[i];
    keep_rows(chunk, sequence, row);
    sequence.num_computed += chunk.num_tokens;
    drop_behind_windows(sequence);
    if (chunk.first_logits_row < chunk.end_of_scored_rows()) {
      PromptLogprobs scores = result->prompts.at(next_prompt++);
      KVASIR_CHECK(scores.sequence == chunk.sequence);
      scores.sequence = SequenceId{};  // numbered by place in the batch here
      sequence.scores.push_back(std::move(scores));
    }
    if (!chunk.samples()) continue;
    SampledToken sampled = result->sampled.at(next_sampled++);
    KVASIR_CHECK(sampled.sequence == chunk.sequence);
    sampled.sequence = SequenceId{};
    sequence.tokens.push_back(sampled.token);
    sequence.sampled.push_back(std::move(sampled));
  }
  KVASIR_CHECK(row == executor_->num_kept_logits());
  KVASIR_CHECK(next_sampled == result->sampled.size());
  KVASIR_CHECK(next_prompt == result->prompts.size());
}

SequenceRunner::TablePlace SequenceRunner::table_place(const TestSequence& sequence,
                                                       std::size_t group) const {
  const kvcache::KvGeometry& geometry = storage_.geometry();
  const std::size_t stripes = sequence.blocks.size() / geometry.blocks_per_stripes();
  TablePlace place;
  for (std::size_t before = 0; before < group; ++before) {
    place.begin += stripes * geometry.blocks_per_stripe(before);
  }
  place.per_stripe = geometry.blocks_per_stripe(group);
  place.size = stripes * place.per_stripe;
  return place;
}

void SequenceRunner::share_stripes(const TestSequence& from, TestSequence& to,
                                   std::uint32_t num_stripes) const {
  for (std::size_t group = 0; group < storage_.geometry().groups.size(); ++group) {
    const TablePlace source = table_place(from, group), destination = table_place(to, group);
    std::copy_n(from.blocks.begin() + static_cast<std::ptrdiff_t>(source.begin),
                num_stripes * source.per_stripe,
                to.blocks.begin() + static_cast<std::ptrdiff_t>(destination.begin));
  }
}

void SequenceRunner::copy_stripe_before_step(const TestSequence& from, const TestSequence& to,
                                             std::uint32_t stripe, std::uint32_t num_tokens) {
  for (std::size_t group = 0; group < storage_.geometry().groups.size(); ++group) {
    const TablePlace source = table_place(from, group), destination = table_place(to, group);
    for (std::size_t i = 0; i < source.per_stripe; ++i) {
      const std::size_t offset = stripe * source.per_stripe + i;
      copy_before_step({.source = from.blocks[source.begin + offset],
                        .destination = to.blocks[destination.begin + offset],
                        .num_tokens = num_tokens});
    }
  }
}

void SequenceRunner::drop_behind_windows(TestSequence& sequence) {
  for (std::size_t group = 0; group < storage_.geometry().groups.size(); ++group) {
    const TablePlace place = table_place(sequence, group);
    const std::size_t behind =
        storage_.geometry().first_visible_stripe(group, sequence.num_computed) * place.per_stripe;
    for (std::size_t i = 0; i < std::min(behind, place.size); ++i) {
      BlockId& block = sequence.blocks[place.begin + i];
      if (block == kNoBlock) continue;
      if (!sequence.shares_blocks) fill_with_nan(storage_, block);
      block = kNoBlock;
    }
  }
}

void SequenceRunner::keep_rows(const BatchChunk& chunk, TestSequence& sequence, std::size_t& row) {
  for (std::uint32_t i = chunk.first_logits_row; i < chunk.num_tokens; ++i, ++row) {
    const std::span<const float> logits = executor_->kept_logits(row);
    if (!sequence.keep_all_logits) continue;
    sequence.logits.resize(
        std::max<std::size_t>(sequence.logits.size(), chunk.first_position + i + 1));
    sequence.logits[chunk.first_position + i].assign(logits.begin(), logits.end());
  }
}

void SequenceRunner::run_alone(TestSequence& sequence, std::uint32_t chunk_tokens,
                               std::uint32_t num_new_tokens) {
  while (sequence.sampled.size() < num_new_tokens) {
    const ChunkOrder order{&sequence, chunk_tokens};
    step({&order, 1});
  }
}

std::vector<BlockId> SequenceRunner::blocks(std::uint32_t num_tokens, std::uint32_t first,
                                            std::uint32_t stride) const {
  const kvcache::KvGeometry& geometry = storage_.geometry();
  const std::uint64_t count = geometry.stripes_for(num_tokens) * geometry.blocks_per_stripes();
  KVASIR_CHECK(std::gcd(stride, options_.num_blocks) == 1);
  KVASIR_CHECK(count <= options_.num_blocks);
  std::vector<BlockId> table;
  for (std::uint64_t i = 0; i < count; ++i) {
    table.push_back(
        BlockId{static_cast<std::uint32_t>((first + i * stride) % options_.num_blocks)});
  }
  return table;
}

Request greedy_request(std::vector<TokenId> prompt) {
  Request request;
  request.prompt_tokens = std::move(prompt);
  request.sampling.temperature = 0.0F;
  request.stop.max_tokens = 1000;
  request.top_logprobs = 5;
  return request;
}

TestSequence make_sequence(Request request, std::vector<BlockId> blocks, bool keep_all_logits) {
  TestSequence sequence;
  sequence.tokens = request.prompt_tokens;
  sequence.request = std::move(request);
  sequence.blocks = std::move(blocks);
  sequence.keep_all_logits = keep_all_logits;
  return sequence;
}

void fill_with_nan(kvcache::KvStorage& storage) {
  for (std::uint32_t block = 0; block < storage.num_blocks(); ++block) {
    fill_with_nan(storage, BlockId{block});
  }
}

void fill_with_nan(kvcache::KvStorage& storage, BlockId block) {
  const kvcache::KvGeometry& geometry = storage.geometry();
  const kvcache::KvLayerGroup& group = geometry.groups.at(0);
  const std::size_t tile_bytes =
      std::size_t{group.head_dim} * geometry.block_tokens * kvcache::element_bytes(geometry.type);
  for (std::uint32_t layer = 0; layer < geometry.layers_per_block(); ++layer) {
    for (std::uint32_t head = 0; head < group.num_kv_heads; ++head) {
      std::memset(storage.k_tile(layer, block, head), 0xFF, tile_bytes);
      std::memset(storage.v_tile(layer, block, head), 0xFF, tile_bytes);
    }
  }
}

}  // namespace kvasir::runtime::test
