// The truth check over a real arena: a byte that is changed in a cached block is found, and nothing
// is found where nothing is wrong; it costs requests at most the wait for one stripe.
#include "engine/truth_check.h"

#include "engine/engine_thread.h"
#include "tests/engine/model_engine.h"
#include "tests/support/catch.h"

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace kvasir;
using namespace kvasir::engine;
using namespace kvasir::engine::test;

namespace {

constexpr std::uint32_t kPromptTokens = 3 * kBlockTokens + 9;
constexpr std::uint64_t kSeed = 5;

std::vector<TokenId> first_prompt() { return random_tokens(1, kPromptTokens); }
/// Begins with the first `shared` tokens of it.
Request later_request(std::uint32_t shared) {
  std::vector<TokenId> prompt = first_prompt();
  prompt.resize(shared);
  const std::vector<TokenId> rest = random_tokens(2, 30);
  prompt.insert(prompt.end(), rest.begin(), rest.end());
  return sampled_request(prompt, 6, kSeed);
}

/// The layer that is spoiled: of a group without a window where there is one, for what is behind a
/// window is wrong without anybody noticing.
kvcache::LayerPlace spoiled_place(const kvcache::KvGeometry& geometry) {
  for (std::uint32_t layer = 0; layer < geometry.num_layers(); ++layer) {
    const kvcache::LayerPlace place = geometry.place(layer);
    if (geometry.groups[place.group].window_tokens == 0) return place;
  }
  return geometry.place(0);
}

/// Whether a query past the first `shared` tokens reads what is spoiled of `token`.
bool is_read(const kvcache::KvGeometry& geometry, std::uint32_t token, std::uint32_t shared) {
  const std::uint32_t window = geometry.groups[spoiled_place(geometry).group].window_tokens;
  return window == 0 || token + window > shared;
}

/// The block of a sequence that holds `token` in the layer to spoil, from the next batch on.
class BlockWatch {
 public:
  BlockWatch(ModelEngine& engine, std::uint32_t token) : engine_(engine) {
    const kvcache::KvGeometry& geometry = engine.storage().geometry();
    const kvcache::LayerPlace place = spoiled_place(geometry);
    const std::size_t entry =
        std::size_t{token} / kBlockTokens * geometry.blocks_per_stripe(place.group) +
        place.block_in_stripe;
    engine.executor.before_step = [this, place, entry](const runtime::Batch& batch) {
      const auto table = batch.chunks[0].block_tables[place.group];
      if (entry < table.size() && table[entry] != kNoBlock) block_ = table[entry];
    };
  }
  ~BlockWatch() { engine_.executor.before_step = nullptr; }
  BlockWatch(const BlockWatch&) = delete;
  BlockWatch& operator=(const BlockWatch&) = delete;
  [[nodiscard]] BlockId block() const { return block_; }

 private:
  ModelEngine& engine_;
  BlockId block_ = kNoBlock;
};

/// Changes one bit of the value of `token` in that layer.
void spoil(ModelEngine& engine, BlockId block, std::uint32_t token) {
  REQUIRE(block != kNoBlock);
  const kvcache::KvGeometry& geometry = engine.storage().geometry();
  const std::size_t row_bytes =
      std::size_t{geometry.groups[0].head_dim} * kvcache::element_bytes(geometry.type);
  std::byte* values = engine.storage().v_tile(spoiled_place(geometry).layer_in_block, block, 0);
  values[(token % kBlockTokens) * row_bytes + 1] ^= std::byte{4};
}

struct Audited {
  explicit Audited(const NamedModel& model, double rate = 1.0)
      : cold(*model.model), engine(*model.model, {.num_blocks = 512, .audit_rate = rate}) {}
  ColdRuns cold;
  ModelEngine engine;
};

const NamedModel& any_model() {
  return small_models()[GENERATE(range(std::size_t{0}, small_models().size()))];
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("TruthCheck: a stale block is found, leaves the cache, and the next request is right",
          "[engine]") {
  const NamedModel& model = any_model();
  // In the first, a middle and the last full stripe of the hit.
  const std::uint32_t token = GENERATE(values({0U, kBlockTokens + 7, 3 * kBlockTokens - 1}));
  INFO(model.name << ", token " << token);
  Audited audited(model);
  ModelEngine& engine = audited.engine;
  BlockId stale = kNoBlock;
  {
    const BlockWatch watch(engine, token);
    (void)engine.run(sampled_request(first_prompt(), 2, kSeed));
    stale = watch.block();
  }
  spoil(engine, stale, token);

  const Request request = later_request(kPromptTokens);
  const auto misled = engine.run(request);
  CHECK(misled->finish->usage.cached_tokens >= 3 * kBlockTokens);
  // The test really spoiled it.
  CHECK((misled->answer == audited.cold.answer(request)) !=
        is_read(engine.storage().geometry(), token, kPromptTokens));
  engine.run_until_idle();
  CHECK(engine.status().audit_mismatches_total == 1);
  CHECK(engine.status().audited_prefixes_total == 1);
  REQUIRE(engine.findings().size() == 1);
  const std::uint32_t first = token / kBlockTokens * kBlockTokens;
  CHECK(contains(engine.findings()[0], "tokens " + std::to_string(first) + " to " +
                                           std::to_string(first + kBlockTokens - 1)));

  const auto right = engine.run(request);
  CHECK(right->finish->usage.cached_tokens <= token);
  CHECK(right->answer == audited.cold.answer(request));
  engine.run_until_idle();
  CHECK(engine.status().audit_mismatches_total == 1);
  CHECK(engine.status().live_blocks == 0);
}

// What was copied out of a stale stripe is stale too, though it is kept under other tokens.
TEST_CASE("TruthCheck: a stale slot that a request copied is found in all that has it",
          "[engine]") {
  const NamedModel& model = any_model();
  // From a last stripe that is partly filled, and from the beginning of a full one.
  const std::uint32_t shared = GENERATE(values({kPromptTokens, 2 * kBlockTokens + 5}));
  INFO(model.name << ", shared " << shared);
  const std::uint32_t token = shared - 2;
  Audited audited(model);
  ModelEngine& engine = audited.engine;
  BlockId stale = kNoBlock;
  {
    const BlockWatch watch(engine, token);
    (void)engine.run(sampled_request(first_prompt(), 2, kSeed));
    stale = watch.block();
  }
  spoil(engine, stale, token);
  const Request request = later_request(shared);
  const auto misled = engine.run(request);
  CHECK(misled->finish->usage.cached_tokens == shared);
  CHECK_FALSE(misled->answer == audited.cold.answer(request));
  engine.run_until_idle();
  CHECK(engine.status().audit_mismatches_total == 1);
  const auto right = engine.run(request);
  CHECK(right->finish->usage.cached_tokens <= token);
  CHECK(right->answer == audited.cold.answer(request));
  const Request first = sampled_request(first_prompt(), 6, kSeed);
  CHECK(engine.run(first)->answer == audited.cold.answer(first));
}

TEST_CASE("TruthCheck: where nothing is stale nothing is found, at any rate and chunk size",
          "[engine]") {
  const NamedModel& model = any_model();
  const std::uint32_t max_step_tokens = GENERATE(5U, 24U);
  INFO(model.name << ", steps of " << max_step_tokens);
  ModelEngine engine(
      *model.model,
      {.num_blocks = 256, .max_step_tokens = max_step_tokens, .num_threads = 2, .audit_rate = 1.0});
  std::uint32_t largest = 0;
  engine.executor.before_step = [&](const runtime::Batch& batch) {
    largest = std::max(largest, batch.num_tokens);
  };
  std::uint64_t hit_tokens = 0;
  std::uint64_t taken_bytes = 0;
  for (const std::uint32_t shared : {16U, 20U, 33U, 40U, 57U, 57U}) {
    const SequenceUsage usage = engine.run(later_request(shared))->finish->usage;
    hit_tokens += usage.cached_tokens;
    taken_bytes += usage.taken_kv_bytes;
    engine.engine().step();
    const EngineStatus now = engine.status();  // in the middle of an audit, where there was a hit
    CHECK(now.live_blocks == 0);
    CHECK(now.free_blocks == now.total_blocks);
    CHECK(now.cached_blocks <= now.free_blocks);
    CHECK(now.taken_blocks_total == now.returned_blocks_total);
    CHECK(now.taken_blocks_total * now.bytes_per_block == taken_bytes);
    engine.run_until_idle();
    CHECK(engine.status().cached_blocks == now.cached_blocks);
  }
  CHECK(engine.status().audited_prefixes_total > 0);
  CHECK(engine.status().audited_tokens_total > 0);
  CHECK(engine.status().audited_tokens_total <= hit_tokens);
  CHECK(engine.status().audit_mismatches_total == 0);
  CHECK(engine.findings().empty());
  CHECK(largest <= max_step_tokens);
  CHECK(engine.status().live_blocks == 0);
}

TEST_CASE("TruthCheck: a rate of 0 computes nothing, and others so many of the hits", "[engine]") {
  const NamedModel& model = small_models()[0];
  for (const double rate : {0.0, 0.25, 1.0}) {
    CAPTURE(rate);
    Audited audited(model, rate);
    std::uint32_t hits = 0;
    for (std::uint32_t i = 0; i < 100; ++i) {
      const Request request = sampled_request(random_tokens(100 + i, 20), 1, kSeed);
      for (int run = 0; run < 2; ++run) {
        hits += audited.engine.run(request)->finish->usage.cached_tokens > 0 ? 1 : 0;
        audited.engine.run_until_idle();
      }
    }
    REQUIRE(hits >= 100);
    const double share = static_cast<double>(audited.engine.status().audited_prefixes_total) / hits;
    CHECK(share >= 0.6 * rate);
    CHECK(share <= 1.4 * rate);
    if (rate == 0.0) CHECK(audited.engine.status().audited_tokens_total == 0);
    if (rate == 1.0) CHECK(audited.engine.status().audited_prefixes_total == hits);
    CHECK(audited.engine.status().audits_given_up_total == 0);
  }
}

TEST_CASE(
    "TruthCheck: a request that comes in the middle is in the next batch, and the audit begins "
    "again when it is gone",
    "[engine]") {
  const NamedModel& model = any_model();
  INFO(model.name);
  Audited audited(model);
  ModelEngine& engine = audited.engine;
  (void)engine.run(sampled_request(first_prompt(), 2, kSeed));
  (void)engine.run(later_request(kPromptTokens));
  REQUIRE(engine.status().audited_tokens_total == 0);
  REQUIRE(engine.engine().step());  // one stripe
  REQUIRE(engine.status().audited_tokens_total == kBlockTokens);
  CHECK(engine.status().busy);
  CHECK(engine.status().live_blocks == 0);
  CHECK(engine.status().free_blocks == engine.status().total_blocks);

  std::vector<std::uint64_t> ids;
  engine.executor.before_step = [&](const runtime::Batch& batch) {
    ids.push_back(value_of(batch.chunks[0].sequence));
  };
  const Request request = sampled_request(random_tokens(77, 40), 3, kSeed);
  const auto sink = engine.run(request);
  CHECK(sink->answer == audited.cold.answer(request));
  for (const std::uint64_t id : ids) CHECK(id == value_of(sink->id));
  CHECK(engine.status().audited_prefixes_total == 0);
  engine.run_until_idle();
  CHECK(engine.status().audited_prefixes_total == 1);
  CHECK(engine.status().audited_tokens_total == kBlockTokens + kPromptTokens);
  CHECK_FALSE(engine.status().busy);
}

TEST_CASE("TruthCheck: an audit that is interrupted again and again is given up", "[engine]") {
  Audited audited(small_models()[0]);
  ModelEngine& engine = audited.engine;
  (void)engine.run(sampled_request(first_prompt(), 2, kSeed));
  (void)engine.run(later_request(kPromptTokens));
  for (std::uint32_t i = 0; i < TruthCheck::kMaxAuditStarts; ++i) {
    REQUIRE(engine.engine().step());
    (void)engine.run(sampled_request(random_tokens(200 + i, 10), 1, kSeed));
  }
  engine.run_until_idle();
  CHECK(engine.status().audited_tokens_total == TruthCheck::kMaxAuditStarts * kBlockTokens);
  CHECK(engine.status().audited_prefixes_total == 0);
  CHECK(engine.status().audits_given_up_total == 1);
  CHECK_FALSE(engine.status().busy);
}

TEST_CASE("TruthCheck: a failed computation ends the audit and nothing else", "[engine]") {
  Audited audited(small_models()[0]);
  ModelEngine& engine = audited.engine;
  (void)engine.run(sampled_request(first_prompt(), 2, kSeed));
  (void)engine.run(later_request(kPromptTokens));
  engine.executor.fail_next = true;
  engine.run_until_idle();
  REQUIRE(engine.findings().size() == 1);
  CHECK(contains(engine.findings()[0], "could not be computed again: scripted failure"));
  CHECK(engine.status().audit_mismatches_total == 0);
  CHECK(engine.status().audited_prefixes_total == 0);
  CHECK(engine.status().audits_given_up_total == 1);
  CHECK(engine.status().live_blocks == 0);
  const Request request = later_request(20);
  CHECK(engine.run(request)->answer == audited.cold.answer(request));
}

TEST_CASE("TruthCheck: a drain and a stop end it", "[engine]") {
  const bool drains = GENERATE(true, false);
  Audited audited(small_models()[0]);
  ModelEngine& engine = audited.engine;
  (void)engine.run(sampled_request(first_prompt(), 2, kSeed));
  (void)engine.run(later_request(kPromptTokens));
  REQUIRE(engine.engine().step());
  REQUIRE(engine.engine().wait_for_work());  // for the rest of it
  if (drains) {
    engine.engine().drain(engine.clock.now() + std::chrono::hours(1));
    CHECK_FALSE(engine.engine().step());
  } else {
    engine.engine().stop();
  }
  CHECK_FALSE(engine.engine().wait_for_work());
  CHECK(engine.status().audited_tokens_total == kBlockTokens);
  CHECK(engine.status().audits_given_up_total == 1);
  CHECK_FALSE(engine.status().busy);
}

TEST_CASE("TruthCheck: a prefix that fills the pool is checked in what it leaves, or given up",
          "[engine]") {
  const NamedModel& model = any_model();
  INFO(model.name);
  const kvcache::KvGeometry geometry =
      model.model->config.kv_geometry(kvcache::KvType::kF16, kBlockTokens);
  ModelEngine engine(
      *model.model,
      {.num_blocks = 4 * geometry.blocks_per_stripes(), .max_step_tokens = 16, .audit_rate = 1.0});
  ColdRuns cold(*model.model);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const Request request = sampled_request(random_tokens(8, 4 * kBlockTokens - 1), 1, kSeed);
    CHECK(engine.run(request)->answer == cold.answer(request));
    engine.run_until_idle();
  }
  CHECK(engine.status().audit_mismatches_total == 0);
  CHECK(engine.status().audited_prefixes_total + engine.status().audits_given_up_total > 0);
  CHECK(engine.status().live_blocks == 0);
  CHECK(engine.status().free_blocks == engine.status().total_blocks);
}

TEST_CASE("TruthCheck: the engine's thread audits without being asked", "[engine]") {
  Audited audited(small_models()[0]);
  ModelEngine& engine = audited.engine;
  (void)engine.run(sampled_request(first_prompt(), 2, kSeed));
  (void)engine.run(later_request(kPromptTokens));
  REQUIRE(engine.status().busy);  // with it, or there would be nothing to wait for below
  std::promise<EngineStatus> seen;
  std::uint32_t batches = 0;
  engine.executor.before_step = [&](const runtime::Batch& batch) {
    if (value_of(batch.chunks[0].sequence) != 0 || ++batches != 2) return;
    seen.set_value(engine.status());
  };
  EngineThread thread(engine.engine());
  const EngineStatus status = seen.get_future().get();
  CHECK(status.audited_tokens_total == kBlockTokens);
  CHECK(status.busy);
}
