// The same bytes out: a sequence's logits, tokens and logprobs must not depend on chunk sizes,
// batch mates, threads, physical blocks, stale bytes in the arena, or on who computed its prefix.
// Everything here is compared with memcmp.
#include "core/rng.h"
#include "runtime/kernels/dispatch.h"
#include "tests/runtime/decoder/run_sequences.h"
#include "tests/runtime/decoder/test_models.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

using namespace kvasir;
using namespace kvasir::runtime;
using namespace kvasir::runtime::test;
using kvasir::kvcache::KvType;

namespace {

constexpr std::uint32_t kAll = 512;
constexpr std::uint32_t kMateTokens = 96;  // room of each mate

/// Draws for the schedule; the counter is the position.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>(
        uniform01({.seed = seed_, .choice_index = 0, .position = next_++}) * bound);
  }

 private:
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

std::vector<TokenId> random_tokens(std::uint32_t count, std::uint32_t vocab_size,
                                   std::uint64_t seed) {
  Dice dice(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = dice.below(vocab_size);
  return tokens;
}

/// What happens around the sequence.
struct Circumstances {
  std::uint32_t chunk_tokens = kAll;
  std::uint32_t num_threads = 1;
  std::uint32_t num_mates = 0;
  std::uint32_t first_block =
      0;  // physical blocks are first, first + stride, ... modulo their (prime) number
  std::uint32_t block_stride = 1;
  std::uint32_t shared_prefix_tokens = 0;  // computed by another sequence, in blocks that both hold
  /// So many tokens of the prompt are a sibling's: its full blocks are shared, the next is copied,
  /// and it writes on in its own while the sequence does.
  std::uint32_t forked_tokens = 0;
  std::uint64_t seed = 0;        // of the schedule
  bool keeps_all_logits = true;  // else only the rows that are sampled are computed to the end
};

std::string describe(const Circumstances& c) {
  return "chunks of " + std::to_string(c.chunk_tokens) + ", " + std::to_string(c.num_threads) +
         " threads, " + std::to_string(c.num_mates) + " mates, blocks from " +
         std::to_string(c.first_block) + " by " + std::to_string(c.block_stride) + ", prefix of " +
         std::to_string(c.shared_prefix_tokens) + ", fork of " + std::to_string(c.forked_tokens) +
         ", seed " + std::to_string(c.seed) + (c.keeps_all_logits ? "" : ", sampled rows only");
}

struct Subject {
  const TestModel* model = nullptr;
  Isa isa = Isa::kScalar;
  KvType kv_type = KvType::kF32;
  Request request;
  std::uint32_t num_new_tokens = 0;
};

class Scene {
 public:
  Scene(const Subject& subject, const Circumstances& around)
      : subject_(subject),
        around_(around),
        dice_(around.seed),
        runner_(*subject.model, options()) {}

  TestSequence run() {
    const std::uint32_t room =
        static_cast<std::uint32_t>(subject_.request.prompt_tokens.size()) + subject_.num_new_tokens;
    TestSequence target =
        make_sequence(subject_.request, take_blocks(room), around_.keeps_all_logits);
    if (around_.shared_prefix_tokens > 0) share_prefix(target);
    if (around_.forked_tokens > 0) fork_from_sibling(target);
    for (std::uint32_t i = 0; i < around_.num_mates; ++i) mates_.push_back(make_mate(i));
    while (target.sampled.size() < subject_.num_new_tokens) step(target);
    return target;
  }

 private:
  /// Prime, so that every stride visits all blocks.
  [[nodiscard]] std::uint32_t num_blocks() const {
    return subject_.model->config.kv_geometry(subject_.kv_type, 16).blocks_per_stripes() == 1 ? 101
                                                                                              : 307;
  }

  [[nodiscard]] RunOptions options() const {
    RunOptions options;
    options.isa = subject_.isa;
    options.kv_type = subject_.kv_type;
    options.num_threads = around_.num_threads;
    options.num_blocks = num_blocks();
    options.max_step_tokens = kAll + 4 * kMateTokens;
    return options;
  }

  std::vector<BlockId> take_blocks(std::uint32_t num_tokens) {
    const std::uint64_t start =
        around_.first_block + std::uint64_t{num_blocks_taken_} * around_.block_stride;
    auto blocks = runner_.blocks(num_tokens, static_cast<std::uint32_t>(start % num_blocks()),
                                 around_.block_stride);
    num_blocks_taken_ += static_cast<std::uint32_t>(blocks.size());
    REQUIRE(num_blocks_taken_ <= num_blocks());
    return blocks;
  }

  /// Another sequence with the same beginning computes it, in chunks of its own, and goes on
  /// differently.
  void share_prefix(TestSequence& target) {
    const std::uint32_t shared = around_.shared_prefix_tokens;
    std::vector<TokenId> prompt(target.tokens.begin(), target.tokens.begin() + shared);
    const auto suffix = random_tokens(9, subject_.model->config.vocab_size, around_.seed + 77);
    prompt.insert(prompt.end(), suffix.begin(), suffix.end());
    const auto room = static_cast<std::uint32_t>(prompt.size()) + 4;
    TestSequence leader = make_sequence(greedy_request(prompt), take_blocks(room), false);
    leader.shares_blocks = target.shares_blocks = true;
    REQUIRE(shared % 16 == 0);
    // Taken before the leader's windows move on, as the prefix cache holds them.
    runner_.share_stripes(leader, target, shared / 16);
    runner_.run_alone(leader, 13, 3);
    target.num_computed = shared;
  }

  /// Another choice of the same prompt computes it in chunks of its own and begins its answer. It
  /// is a mate from here on.
  void fork_from_sibling(TestSequence& target) {
    const std::uint32_t num_tokens = around_.forked_tokens;
    REQUIRE(num_tokens < target.tokens.size());
    Request request = subject_.request;
    request.sampling.temperature = 1.3F;
    request.sampling.choice_index = 1;
    const auto room = static_cast<std::uint32_t>(request.prompt_tokens.size()) + kMateTokens;
    TestSequence sibling = make_sequence(request, take_blocks(room), false);
    sibling.shares_blocks = target.shares_blocks = true;
    const std::uint32_t num_full = num_tokens / 16;
    const TestSequence as_computed = sibling;
    runner_.share_stripes(sibling, target, num_full);
    runner_.run_alone(sibling, 13, 2);
    if (num_tokens % 16 > 0) {
      runner_.copy_stripe_before_step(as_computed, target, num_full, num_tokens % 16);
    }
    target.num_computed = num_tokens;
    mates_.push_back(std::move(sibling));
  }

  [[nodiscard]] std::size_t room_of(const TestSequence& sequence) const {
    const auto geometry = subject_.model->config.kv_geometry(subject_.kv_type, 16);
    return sequence.blocks.size() / geometry.blocks_per_stripes() * 16;
  }

  TestSequence make_mate(std::uint32_t index) {
    const std::uint32_t length = 1 + dice_.below(kMateTokens / 2);
    Request request = greedy_request(
        random_tokens(length, subject_.model->config.vocab_size, around_.seed * 100 + index));
    request.sampling.temperature = index % 2 == 0 ? 0.0F : 1.3F;
    request.sampling.seed = index;
    return make_sequence(request, take_blocks(kMateTokens), index == 0);
  }

  /// The target's chunk among random chunks of a random part of the mates, in random order.
  void step(TestSequence& target) {
    std::vector<ChunkOrder> orders;
    for (TestSequence& mate : mates_) {
      const bool full = mate.tokens.size() >= room_of(mate);
      if (full || dice_.below(4) == 0) continue;
      orders.push_back({&mate, 1 + dice_.below(30)});
    }
    const auto place =
        static_cast<std::ptrdiff_t>(dice_.below(static_cast<std::uint32_t>(orders.size()) + 1));
    orders.insert(orders.begin() + place, {&target, around_.chunk_tokens});
    runner_.step(orders);
  }

  const Subject& subject_;
  const Circumstances& around_;
  Dice dice_;
  SequenceRunner runner_;
  std::uint32_t num_blocks_taken_ = 0;
  std::vector<TestSequence> mates_;
};

/// Where the two first differ, or an empty string.
std::string first_difference(const TestSequence& expected, const TestSequence& actual,
                             const Circumstances& around) {
  if (expected.tokens != actual.tokens) return "tokens";
  if (expected.sampled != actual.sampled) return "sampled tokens or logprobs";
  if (!around.keeps_all_logits) return {};
  if (expected.logits.size() != actual.logits.size()) return "number of logits";
  for (std::size_t p = std::max(around.shared_prefix_tokens, around.forked_tokens);
       p < expected.logits.size(); ++p) {
    const std::size_t bytes = expected.logits[p].size() * sizeof(float);
    if (actual.logits[p].size() != expected.logits[p].size() ||
        std::memcmp(expected.logits[p].data(), actual.logits[p].data(), bytes) != 0) {
      return "logits at position " + std::to_string(p);
    }
  }
  return {};
}

void check_identity(const Subject& subject, const std::vector<Circumstances>& list) {
  const Circumstances alone;
  const TestSequence expected = Scene(subject, alone).run();
  REQUIRE(expected.sampled.size() == subject.num_new_tokens);
  for (const std::vector<float>& row : expected.logits) {
    REQUIRE(std::all_of(row.begin(), row.end(), [](float x) { return x - x == 0.0F; }));
  }
  for (const Circumstances& around : list) {
    INFO(isa_name(subject.isa) << ", " << kvcache::kv_type_name(subject.kv_type) << ", "
                               << describe(around));
    CHECK(first_difference(expected, Scene(subject, around).run(), around) == "");
  }
}

/// Every chunk size, thread count, block order, with and without mates and a prefix from elsewhere.
std::vector<Circumstances> all_circumstances(std::uint32_t prefix_tokens,
                                             const std::vector<std::uint32_t>& chunks = {
                                                 1U, 3U, 16U, 17U, 64U, kAll}) {
  std::vector<Circumstances> list;
  std::uint32_t i = 0;
  for (const std::uint32_t chunk : chunks) {
    ++i;
    list.push_back({.chunk_tokens = chunk, .num_threads = 1 + i % 3});
    list.push_back({.chunk_tokens = chunk,
                    .num_threads = 1 + (i + 1) % 3,
                    .num_mates = 1 + i % 4,
                    .first_block = 7 * i,
                    .block_stride = 3 + 5 * i,
                    .seed = i});
  }
  list.push_back({.num_threads = 2});
  list.push_back({.num_threads = 2, .keeps_all_logits = false});
  list.push_back({.chunk_tokens = 17,
                  .num_threads = 3,
                  .num_mates = 2,
                  .seed = 23,
                  .keeps_all_logits = false});
  list.push_back({.num_threads = 3, .first_block = 100, .block_stride = 100});
  list.push_back(
      {.chunk_tokens = 17, .num_threads = 2, .shared_prefix_tokens = prefix_tokens, .seed = 21});
  list.push_back({.chunk_tokens = kAll,
                  .num_threads = 3,
                  .num_mates = 3,
                  .first_block = 50,
                  .block_stride = 37,
                  .shared_prefix_tokens = prefix_tokens,
                  .seed = 22});
  // At a block's border, one past it, and where the last slot but one of a block is copied.
  for (const std::uint32_t past : {0U, 1U, 14U}) {
    list.push_back({.chunk_tokens = 1 + 15 * past,
                    .num_threads = 1 + past % 3,
                    .num_mates = past % 4,
                    .first_block = 40 + past,
                    .block_stride = 29,
                    .forked_tokens = prefix_tokens + past,
                    .seed = 24 + past});
  }
  return list;
}

template <typename Body>
void for_each_isa(const Body& body) {
  std::uint32_t num_run = 0;
  for (const Isa isa : compiled_isas()) {
    if (!cpu_supports(isa)) continue;
    body(isa);
    ++num_run;
  }
  REQUIRE(num_run >= 1);
}

Request seeded_request(std::vector<TokenId> prompt, float top_p, std::uint32_t top_k) {
  Request request = greedy_request(std::move(prompt));
  request.sampling.temperature = 1.1F;
  request.sampling.top_p = top_p;
  request.sampling.top_k = top_k;
  request.sampling.seed = 4711;
  return request;
}

const TinyShape kShapes[] = {
    {.family = ModelFamily::kLlama, .num_heads = 3, .num_kv_heads = 3, .head_dim = 20, .width = 52},
    {.family = ModelFamily::kLlama, .num_heads = 6, .num_kv_heads = 2, .head_dim = 16},
    {.family = ModelFamily::kQwen2, .num_heads = 4, .num_kv_heads = 1, .head_dim = 24},
};

}  // namespace

TEST_CASE("Decoder: a tiny model's bits do not depend on what happens around a sequence",
          "[runtime]") {
  for_each_isa([](Isa isa) {
    for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16}) {
      const auto list =
          type == KvType::kF16 ? all_circumstances(272) : all_circumstances(272, {1U, 17U});
      for (const TinyShape& shape : kShapes) {
        const auto model = make_tiny_model(shape, 3);
        // Beyond kAttentionRange, so that ranges are merged.
        const auto prompt = random_tokens(kAttentionRange + 45, shape.vocab_size, 5);
        check_identity({model.get(), isa, type, greedy_request(prompt), 9}, list);
      }
    }
  });
}

TEST_CASE("Decoder: an int8 model's bits do not depend on what happens around a sequence",
          "[runtime]") {
  const TinyShape shapes[] = {
      {.num_heads = 6, .num_kv_heads = 2, .head_dim = 32, .width = 96, .ffn_width = 160},
      // No input of this one's ffn_down is quantised.
      {.family = ModelFamily::kQwen2, .num_kv_heads = 1, .width = 64, .ffn_width = 88}};
  for_each_isa([&](Isa isa) {
    for (const TinyShape& shape : shapes) {
      const auto model = make_tiny_int8_model(shape, 7);
      REQUIRE(model->weights.layers[0].query.layout == WeightLayout::kPanels);
      const auto prompt = random_tokens(kAttentionRange + 45, shape.vocab_size, 5);
      check_identity({model.get(), isa, KvType::kF16, greedy_request(prompt), 9},
                     all_circumstances(272));
    }
  });
}

TEST_CASE("Decoder: a windowed model's bits do not depend on what happens around a sequence",
          "[runtime]") {
  const TinyShape shapes[] = {
      // Two windowed layers for each full one; all layers; three KV heads of a width with a tail.
      {.family = ModelFamily::kGemma3,
       .num_kv_heads = 1,
       .head_dim = 24,
       .num_layers = 3,
       .window_tokens = 40,
       .full_layer_period = 3},
      {.family = ModelFamily::kLlama, .window_tokens = 8},
      {.family = ModelFamily::kGemma3,
       .num_heads = 3,
       .num_kv_heads = 3,
       .head_dim = 20,
       .width = 52,
       .num_layers = 4,
       .window_tokens = 17,
       .full_layer_period = 2}};
  for_each_isa([&](Isa isa) {
    for (const TinyShape& shape : shapes) {
      const auto model = make_tiny_model(shape, 3);
      const auto prompt = random_tokens(kAttentionRange + 45, shape.vocab_size, 5);
      check_identity({model.get(), isa, KvType::kF16, greedy_request(prompt), 9},
                     all_circumstances(272, {1U, 17U, 64U}));
    }
    const TinyShape int8_shape{.family = ModelFamily::kGemma3,
                               .num_kv_heads = 1,
                               .head_dim = 32,
                               .width = 64,
                               .ffn_width = 96,
                               .num_layers = 3,
                               .window_tokens = 33,
                               .full_layer_period = 3};
    const auto model = make_tiny_int8_model(int8_shape, 7);
    const auto prompt = random_tokens(kAttentionRange + 45, int8_shape.vocab_size, 5);
    check_identity({model.get(), isa, KvType::kBf16, greedy_request(prompt), 9},
                   all_circumstances(272, {1U, 17U, 64U}));
  });
}

TEST_CASE("Decoder: a window that covers all positions changes no bit, a shorter one does",
          "[runtime]") {
  const TinyShape plain{.num_layers = 3};
  const auto prompt = random_tokens(280, plain.vocab_size, 5);
  const auto logits_with = [&](std::uint32_t window, std::uint32_t period) {
    const auto model = make_tiny_model(plain, 3);
    if (window > 0) {
      // The same rotation in all layers: only the window differs.
      model->config.layer_kinds.push_back({window, model->config.layer_kinds[0].rope});
      for (std::uint32_t layer = 0; layer < plain.num_layers; ++layer) {
        model->config.kind_of_layer.push_back((layer + 1) % period == 0 ? 0 : 1);
      }
    }
    const Subject subject{model.get(), best_isa(), KvType::kF32, greedy_request(prompt), 3};
    return Scene(subject, {.chunk_tokens = 60, .num_threads = 2}).run().logits;
  };
  const auto all = logits_with(0, 0);
  CHECK(logits_with(282, 3) == all);
  // What differs, differs from the first position on that the window does not reach back from.
  const auto shorter = logits_with(281, 3);
  CHECK(std::equal(shorter.begin(), shorter.begin() + 281, all.begin()));
  CHECK(shorter[281] != all[281]);
  CHECK(logits_with(100, 3)[100] != all[100]);
}

TEST_CASE("Decoder: seeded sampling does not depend on what happens around a sequence",
          "[runtime]") {
  for_each_isa([](Isa isa) {
    const auto model = make_tiny_model(kShapes[1], 11);
    const auto prompt = random_tokens(50, model->config.vocab_size, 6);
    for (const Request& request : {seeded_request(prompt, 1.0F, 0), seeded_request(prompt, 0.9F, 0),
                                   seeded_request(prompt, 0.95F, 12)}) {
      check_identity({model.get(), isa, KvType::kF16, request, 24}, all_circumstances(32));
    }
  });
}

namespace {

void check_smollm2(const TestModel& model) {
  for_each_isa([&](Isa isa) {
    const bool slow = isa == Isa::kScalar;
    const std::uint32_t prompt_tokens = slow ? 19 : 70;
    const auto prompt = random_tokens(prompt_tokens, model.config.vocab_size, 8);
    std::vector<Circumstances> list = {
        {.chunk_tokens = 3,
         .num_threads = 2,
         .num_mates = 1,
         .first_block = 9,
         .block_stride = 5,
         .seed = 31},
        {.chunk_tokens = 16, .num_threads = 1, .shared_prefix_tokens = 16, .seed = 32},
    };
    if (!slow) {
      list.push_back({.chunk_tokens = 1, .num_threads = 2});
      list.push_back({.chunk_tokens = 17, .num_threads = 3, .num_mates = 3, .seed = 33});
      list.push_back(
          {.chunk_tokens = 64, .num_threads = 2, .num_mates = 2, .block_stride = 40, .seed = 34});
      list.push_back({.chunk_tokens = kAll, .num_threads = 3, .num_mates = 2, .seed = 35});
    }
    check_identity({&model, isa, KvType::kF16, seeded_request(prompt, 0.95F, 0), 3}, list);
  });
}

}  // namespace

TEST_CASE("Decoder: SmolLM2's bits do not depend on what happens around a sequence",
          "[runtime][smollm2]") {
  check_smollm2(smollm2());
}

TEST_CASE("Decoder: SmolLM2's bits with int8 activations do not depend on what happens around",
          "[runtime][smollm2]") {
  check_smollm2(smollm2_int8());
}
