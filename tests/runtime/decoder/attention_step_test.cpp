// A step's attention by any number of workers: each row's bits are those of the row computed alone
// by one call of the kernel, whatever it was computed with and however it was split.
#include "runtime/model/attention_step.h"

#include "runtime/kernels/dispatch.h"
#include "tests/runtime/kernels/kernel_cases.h"
#include "tests/support/held_memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

using namespace kvasir;
using namespace kvasir::runtime;
using namespace kvasir::runtime::testing;

namespace {

constexpr std::uint32_t kLayers = 2, kLayer = 1;
constexpr float kUntouched = -7.0F;

struct ModelShape {
  std::uint32_t num_heads = 9, num_kv_heads = 3, head_dim = 64;
  kvcache::KvType type = kvcache::KvType::kF16;
  std::uint32_t block_tokens = 32;
  std::uint32_t window = 0;
};

/// With a window, the layer at work is the second of two windowed ones beside a full one: its
/// blocks are every second of the table of group 1.
ModelConfig make_config(const ModelShape& shape) {
  ModelConfig config;
  config.num_layers = kLayers;
  if (shape.window > 0) {
    config.num_layers = 3;
    config.layer_kinds.push_back({shape.window, {}});
    config.kind_of_layer = {1, 1, 0};
  }
  config.num_heads = shape.num_heads;
  config.num_kv_heads = shape.num_kv_heads;
  config.head_dim = shape.head_dim;
  config.context_tokens = 8192;
  return config;
}

struct ChunkShape {
  std::uint32_t first_position = 0, num_tokens = 1;
  std::uint32_t prefix = 0, prefix_tokens = 0;  // of the blocks of the prefix; the others are own
  std::uint32_t first_query = 0;
};

/// Sequences with random K and V at all positions that a step's tokens see, and NaN elsewhere.
class Scene {
 public:
  Scene(const ModelShape& shape, const std::vector<ChunkShape>& chunks)
      : shape_(shape),
        config_(make_config(shape)),
        storage_(config_.kv_geometry(shape.type, shape.block_tokens), kNumBlocks) {
    std::memset(storage_.k_tile(0, BlockId{0}, 0), 0xFF, storage_.size_bytes());
    tables_.resize(chunks.size());
    windowed_tables_.reserve(chunks.size());
    for (std::size_t c = 0; c < chunks.size(); ++c) add(chunks[c], tables_[c]);
    Numbers numbers(77);
    query_ = numbers.floats(batch_.num_tokens * stride(), 2.0F);
  }

  std::size_t stride() const {
    return std::size_t{shape_.num_heads} * shape_.head_dim + 5;  // rows are padded somehow
  }
  std::vector<float> run(const KernelTable& kernels, std::uint32_t num_threads) const {
    AttentionStep step(limits(num_threads), config_, kernels, storage_);
    leave_nans(step, num_threads);
    step.plan(batch_, first_token_, first_query_);
    std::vector<float> out(query_.size(), kUntouched);
    // One worker after the other, the last first: none waits for another.
    for (std::uint32_t w = num_threads; w-- > 0;) {
      step.attend(kLayer, query_.data(), stride(), out.data(), stride(), w);
    }
    for (std::uint32_t w = num_threads; step.needs_merge(kLayer) && w-- > 0;) {
      step.merge(kLayer, out.data(), stride(), w);
    }
    return out;
  }

  /// A step before, whose partial results are NaN: twenty decodes that share the longest table.
  void leave_nans(AttentionStep& step, std::uint32_t num_threads) const {
    BatchChunk longest = batch_.chunks[0];
    for (const BatchChunk& chunk : batch_.chunks) {
      if (chunk.block_tables[0].size() > longest.block_tables[0].size()) longest = chunk;
      if (shape_.window > 0) longest = batch_.chunks[0];  // what it sees of others may be gone
    }
    longest.first_position += longest.num_tokens - 1;
    longest.num_tokens = 1;
    Batch batch;
    batch.chunks.assign(20, longest);
    batch.num_tokens = 20;
    const std::vector<std::uint32_t> zeros(20, 0);
    const std::vector<float> query(stride(), std::numeric_limits<float>::quiet_NaN());
    std::vector<float> out(stride());
    step.plan(batch, zeros, zeros);
    // One after the other: all of them write the same row.
    for (std::uint32_t w = 0; w < num_threads; ++w) {
      step.attend(kLayer, query.data(), stride(), out.data(), stride(), w);
    }
  }

  /// Every computed row as one call of the kernel gives it; the rest untouched.
  std::vector<float> rows_alone(const KernelTable& kernels) const {
    std::vector<float> out(query_.size(), kUntouched);
    StepMemory memory(
        StepMemory::bytes_of<float>(kernels.attention_kernels->scratch_floats(shape_.head_dim)));
    const std::span<float> scratch =
        memory.take<float>(kernels.attention_kernels->scratch_floats(shape_.head_dim));
    for (std::size_t c = 0; c < batch_.chunks.size(); ++c) {
      const BatchChunk& chunk = batch_.chunks[c];
      for (std::uint32_t i = first_query_[c]; i < chunk.num_tokens; ++i) {
        for (std::uint32_t h = 0; h < shape_.num_heads; ++h) {
          const std::uint32_t kv_head = h / (shape_.num_heads / shape_.num_kv_heads);
          const std::uint32_t position = chunk.first_position + i;
          const std::uint32_t first = first_visible(position);
          const std::uint32_t begin = first / kAttentionRange * kAttentionRange;
          std::vector<const std::byte*> k, v;
          for (std::uint32_t p = begin; p <= position; p += shape_.block_tokens) {
            const bool seen = p + shape_.block_tokens > first;
            const BlockId block = seen ? block_at(c, p / shape_.block_tokens) : BlockId{0};
            k.push_back(seen ? storage_.k_tile(layer_in_block(), block, kv_head) : nullptr);
            v.push_back(seen ? storage_.v_tile(layer_in_block(), block, kv_head) : nullptr);
          }
          const std::size_t at =
              (first_token_[c] + i) * stride() + std::size_t{h} * shape_.head_dim;
          const AttentionRow row{&query_[at], first, position, &out[at], nullptr};
          AttentionTask task;
          task.element = static_cast<KvElement>(shape_.type);
          task.block_tokens = shape_.block_tokens;
          task.head_dim = shape_.head_dim;
          task.first_range = first / kAttentionRange;
          task.end_range = row.position / kAttentionRange + 1;
          task.k_tiles = k.data();
          task.v_tiles = v.data();
          task.rows = &row;
          task.num_rows = 1;
          task.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape_.head_dim)));
          task.scratch = scratch.data();
          kernels.attention_kernels->attend(task);
        }
      }
    }
    return out;
  }

  AttentionLimits limits(std::uint32_t num_threads) const {
    AttentionLimits limits;
    limits.num_threads = num_threads;
    limits.max_step_tokens = 512;
    limits.max_chunks = 64;
    return limits;
  }
  bool needs_merge(std::uint32_t num_threads) const {
    AttentionStep step(limits(num_threads), config_, kernels_for(best_isa()), storage_);
    step.plan(batch_, first_token_, first_query_);
    return step.needs_merge(kLayer);
  }
  const ModelConfig& config() const { return config_; }
  const kvcache::KvStorage& storage() const { return storage_; }

 private:
  static constexpr std::uint32_t kNumBlocks = 800;
  static constexpr std::uint32_t kPrefixBlocks = 100;  // of each of two prefixes

  std::uint32_t first_visible(std::uint32_t position) const {
    return shape_.window == 0 || position < shape_.window ? 0 : position + 1 - shape_.window;
  }
  std::uint32_t layer_in_block() const { return storage_.geometry().place(kLayer).layer_in_block; }
  BlockId block_at(std::size_t chunk, std::uint32_t stripe) const {
    return shape_.window == 0 ? tables_[chunk][stripe] : windowed_tables_[chunk][2 * stripe + 1];
  }
  void add(const ChunkShape& shape, std::vector<BlockId>& table) {
    const std::uint32_t end = shape.first_position + shape.num_tokens;
    for (std::uint32_t begin = 0; begin < end; begin += shape_.block_tokens) {
      const bool shared = begin + shape_.block_tokens <= shape.prefix_tokens;
      const BlockId block{shared ? shape.prefix * kPrefixBlocks + begin / shape_.block_tokens
                                 : next_block_++};
      REQUIRE(value_of(block) < kNumBlocks);
      table.push_back(block);
      fill(block, begin, std::min(end, begin + shape_.block_tokens));
    }
    // The table of group 0, which the layer does not read, may hold anything.
    std::vector<BlockId>& windowed = windowed_tables_.emplace_back();
    for (std::uint32_t i = 0; i < table.size(); ++i) {
      const bool gone = (i + 1) * shape_.block_tokens <= first_visible(shape.first_position);
      windowed.push_back(BlockId{kNumBlocks - 1});
      windowed.push_back(gone ? kNoBlock : table[i]);
    }
    BatchChunk chunk;
    chunk.first_position = shape.first_position;
    chunk.num_tokens = shape.num_tokens;
    chunk.block_tables[0] = table;
    chunk.block_tables[1] = windowed;
    batch_.chunks.push_back(chunk);
    first_token_.push_back(batch_.num_tokens);
    first_query_.push_back(shape.first_query);
    batch_.num_tokens += shape.num_tokens;
  }
  /// The same for the same block, so that who shares it may fill it again.
  void fill(BlockId block, std::uint32_t begin, std::uint32_t end) {
    for (std::uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
      Numbers numbers(value_of(block) * 16 + kv_head);
      for (std::uint32_t p = begin; p < end; ++p) {
        const auto k = numbers.floats(shape_.head_dim, 2.0F);
        const auto v = numbers.floats(shape_.head_dim);
        kernels_for(Isa::kScalar)
            .store_kv(static_cast<KvElement>(shape_.type), k.data(), v.data(),
                      storage_.k_tile(layer_in_block(), block, kv_head),
                      storage_.v_tile(layer_in_block(), block, kv_head), shape_.head_dim,
                      shape_.block_tokens, p - begin);
      }
    }
  }

  ModelShape shape_;
  ModelConfig config_;
  kvcache::KvStorage storage_;
  std::vector<std::vector<BlockId>> tables_;
  std::vector<std::vector<BlockId>> windowed_tables_;
  std::uint32_t next_block_ = 2 * kPrefixBlocks;
  Batch batch_;
  std::vector<std::uint32_t> first_token_, first_query_;
  std::vector<float> query_;
};

void check_scene(const Scene& scene) {
  for_each_isa([&](const KernelTable& kernels) {
    const auto expected = scene.rows_alone(kernels);
    for (const std::uint32_t num_threads : {1U, 2U, 3U, 8U}) {
      INFO(num_threads << " threads");
      REQUIRE(same_bits(scene.run(kernels, num_threads), expected));
    }
  });
}

const ModelShape kShapes[] = {
    {9, 3, 64, kvcache::KvType::kF16, 32},  {4, 4, 16, kvcache::KvType::kF32, 16},
    {8, 2, 80, kvcache::KvType::kBf16, 64}, {14, 2, 24, kvcache::KvType::kF16, 16},
    {71, 1, 8, kvcache::KvType::kF32, 64},
};

}  // namespace

TEST_CASE("AttentionStep: a long decode is split over workers, with the same bits",
          "[runtime][kernel]") {
  for (const ModelShape& shape : kShapes) {
    const Scene scene(shape, {{2100, 1}});
    CHECK_FALSE(scene.needs_merge(1));
    check_scene(scene);
  }
  CHECK(Scene(kShapes[0], {{2100, 1}}).needs_merge(2));  // three KV heads
  CHECK(Scene({1, 1, 16}, {{6000, 1}}).needs_merge(2));
}

TEST_CASE("AttentionStep: prefill, drafts and decodes in one step", "[runtime][kernel]") {
  for (const ModelShape& shape : kShapes) {
    check_scene(
        Scene(shape, {{0, 70}, {900, 1}, {230, 61}, {1023, 4}, {0, 1}, {255, 1}, {256, 1}}));
    // Queries that nobody asks for.
    check_scene(Scene(shape, {{0, 70, 0, 0, 70}, {230, 61, 0, 0, 60}, {1023, 4, 0, 0, 2}}));
  }
}

TEST_CASE("AttentionStep: sequences that share prefixes give what they give alone",
          "[runtime][kernel]") {
  for (const ModelShape& shape : kShapes) {
    std::vector<ChunkShape> chunks;
    for (std::uint32_t c = 0; c < 9; ++c) chunks.push_back({520 + 37 * c, 1, 0, 512});
    for (std::uint32_t c = 0; c < 4; ++c) chunks.push_back({1100 + 50 * c, 1 + c % 3, 1, 1024});
    chunks.push_back({1300, 1, 1, 800});
    chunks.push_back({1022, 4, 1, 1024});  // drafts over a border: not all rows see all ranges
    chunks.push_back({511, 1, 0, 512});    // nothing of its own but its last slot
    chunks.push_back({640, 30, 0, 512});   // a prefill, with its own reading
    std::rotate(chunks.begin(), chunks.begin() + 5, chunks.end());
    check_scene(Scene(shape, chunks));
  }
  CHECK(Scene(kShapes[0], std::vector<ChunkShape>(9, {560, 1, 0, 512})).needs_merge(1));
}

TEST_CASE("AttentionStep: windows, by any number of workers, read nothing of what lies behind them",
          "[runtime][kernel]") {
  for (ModelShape shape : kShapes) {
    for (const std::uint32_t window : {1U, 60U, 512U, 1500U}) {
      INFO("window " << window);
      shape.window = window;
      check_scene(Scene(shape, {{2100, 1}}));
      check_scene(Scene(shape, {{230, 61}, {900, 1}, {1023, 9}, {0, 70}, {511, 1}, {512, 1}}));
      // Forks within the window's first stretch share their prefix, those behind it do not.
      std::vector<ChunkShape> forks;
      for (std::uint32_t c = 0; c < 9; ++c) forks.push_back({520 + 37 * c, 1, 0, 512});
      check_scene(Scene(shape, forks));
    }
  }
  CHECK(Scene({9, 3, 64, kvcache::KvType::kF16, 32, 1500}, {{2100, 1}}).needs_merge(2));
}

TEST_CASE("AttentionStep: the buffers are counted, and a step allocates nothing", "[runtime]") {
  if (kvasir::test::held_bytes() == 0) {
    WARN("skipped: this build's allocator does not say what it holds (sanitizers)");
    return;
  }
  const KernelTable& kernels = kernels_for(best_isa());
  const Scene scene(kShapes[0], {{0, 1}});
  for (const std::uint32_t num_threads : {1U, 3U}) {
    const AttentionLimits limits = scene.limits(num_threads);
    const std::uint64_t before = kvasir::test::held_bytes();
    AttentionStep step(limits, scene.config(), kernels, scene.storage());
    const auto actual = static_cast<double>(kvasir::test::held_bytes() - before);
    const auto said =
        static_cast<double>(AttentionStep::buffer_bytes(limits, scene.config(), kernels));
    INFO(said << " said, " << actual << " held");
    CHECK(actual <= said * 1.01 + kvasir::test::kPageRoundingBytes);
    CHECK(said <= actual * 1.01);
    CHECK(said < 16e6);

    Batch batch;
    const std::vector<BlockId> table(100, BlockId{1});
    BatchChunk chunk;
    chunk.first_position = 3000;
    chunk.num_tokens = 8;
    chunk.block_tables[0] = table;
    batch.chunks.assign(64, chunk);
    batch.num_tokens = 64 * 8;
    std::vector<std::uint32_t> first_token, first_query(64, 0);
    for (std::uint32_t c = 0; c < 64; ++c) first_token.push_back(c * 8);
    const std::vector<float> query(512 * 576, 0.5F);
    std::vector<float> out(512 * 576);
    const std::size_t at_start = kvasir::test::held_bytes();
    step.plan(batch, first_token, first_query);
    for (std::uint32_t w = 0; w < num_threads; ++w) {
      step.attend(kLayer, query.data(), 576, out.data(), 576, w);
    }
    for (std::uint32_t w = 0; step.needs_merge(kLayer) && w < num_threads; ++w) {
      step.merge(kLayer, out.data(), 576, w);
    }
    CHECK(kvasir::test::held_bytes() == at_start);
  }
}
