// What the executor promises beside the numbers: the rows it samples and keeps, the memory it says
// it holds, and that a batch which breaks the contract ends the process before it touches another
// sequence's blocks.
#include "runtime/cpu_executor.h"

#include "runtime/kernels/dispatch.h"
#include "tests/runtime/decoder/run_sequences.h"
#include "tests/runtime/decoder/test_models.h"
#include "tests/support/catch.h"
#include "tests/support/held_memory.h"

#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

using namespace kvasir;
using namespace kvasir::runtime;
using namespace kvasir::runtime::test;

namespace {

/// A model, an arena and an executor of one thread (so that a child process may use it), with one
/// good batch.
struct Fixture {
  explicit Fixture(std::uint32_t max_sequences = 2) {
    options.max_step_tokens = 20;
    options.max_sequences = max_sequences;
    options.max_context_tokens = 40;
    executor = std::make_unique<CpuExecutor>(options, model->config, model->weights, storage);
    request.prompt_tokens = tokens;
    request.stop.max_tokens = 1;
    chunk.num_tokens = 18;
    chunk.first_logits_row = 17;
    chunk.tokens = std::span(tokens).first(18);
    chunk.num_prompt_tokens = 18;
    chunk.block_tables[0] = table;
    chunk.request = &request;
  }

  Result<StepResult> execute(const std::vector<BatchChunk>& chunks) {
    Batch batch;
    batch.chunks = chunks;
    for (const BatchChunk& c : chunks) batch.num_tokens += c.num_tokens;
    return executor->execute(batch);
  }

  std::unique_ptr<TestModel> model = make_tiny_model({}, 1);
  kvcache::KvStorage storage{model->config.kv_geometry(kvcache::KvType::kF16, 16), 4};
  CpuExecutorOptions options;
  std::unique_ptr<CpuExecutor> executor;
  Request request;
  std::vector<TokenId> tokens = std::vector<TokenId>(60, 5);
  std::vector<BlockId> table = {BlockId{2}, BlockId{0}};
  BatchChunk chunk;
};

/// Whether the action aborts, tried in a child process.
bool aborts(const std::function<void()>& action) {
  std::fflush(nullptr);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    (void)std::freopen("/dev/null", "w", stderr);
    signal(SIGABRT, SIG_DFL);  // not Catch's report
    action();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

}  // namespace

TEST_CASE("CpuExecutor: a chunk is sampled at its last row if that is the last known token's",
          "[runtime]") {
  Fixture f;
  BatchChunk silent = f.chunk;  // positions 0 and 1 of another sequence
  silent.num_tokens = 2;
  silent.first_logits_row = 2;
  const std::vector<BlockId> other = {BlockId{1}};
  silent.block_tables[0] = other;
  silent.sequence = SequenceId{8};
  f.chunk.sequence = SequenceId{7};
  const auto result = f.execute({silent, f.chunk});
  REQUIRE(result.has_value());
  REQUIRE(result->sampled.size() == 1);
  CHECK(result->sampled[0].sequence == SequenceId{7});
  CHECK(f.executor->num_kept_logits() == 0);
  CHECK(f.execute({silent})->sampled.empty());
  silent.first_logits_row = 0;  // wanted for something else: more tokens are known
  CHECK(f.execute({silent})->sampled.empty());
  CHECK(f.execute({})->sampled.empty());
}

TEST_CASE("CpuExecutor: kept logits are every wanted row, more than the head computes at once",
          "[runtime]") {
  Fixture few(1);  // one row of logits at a time
  Fixture many(20);
  std::vector<std::vector<float>> rows[2];
  std::size_t i = 0;
  for (Fixture* f : {&few, &many}) {
    f->executor->keep_logits(true);
    f->chunk.first_logits_row = 3;
    const auto result = f->execute({f->chunk});
    REQUIRE(result->sampled.size() == 1);
    REQUIRE(f->executor->num_kept_logits() == 15);
    for (std::size_t r = 0; r < 15; ++r) {
      const auto row = f->executor->kept_logits(r);
      rows[i].emplace_back(row.begin(), row.end());
    }
    ++i;
  }
  CHECK(rows[0] == rows[1]);
}

TEST_CASE("CpuExecutor: rows of a prompt that are not wanted are not scored", "[runtime]") {
  Fixture f;
  f.request.prompt_logprobs = 1;
  f.chunk.first_logits_row = 0;
  const auto all = f.execute({f.chunk});
  REQUIRE(all->prompts.size() == 1);
  REQUIRE(all->prompts[0].first_token == 1);
  REQUIRE(all->prompts[0].tokens.size() == 17);
  f.chunk.first_logits_row = 3;  // the others were delivered before a preemption
  const auto rest = f.execute({f.chunk});
  REQUIRE(rest->prompts.size() == 1);
  const PromptLogprobs& scores = rest->prompts[0];
  CHECK(scores.first_token == 4);
  CHECK(scores.tokens ==
        std::vector(all->prompts[0].tokens.begin() + 3, all->prompts[0].tokens.end()));
  CHECK(scores.top == std::vector(all->prompts[0].top.begin() + 3, all->prompts[0].top.end()));
  CHECK(rest->sampled == all->sampled);
  f.chunk.first_logits_row = 17;
  CHECK(f.execute({f.chunk})->prompts.empty());
}

TEST_CASE("CpuExecutor: buffer_bytes is what construction allocates", "[runtime]") {
  if (kvasir::test::held_bytes() == 0) {
    WARN("skipped: this build's allocator does not say what it holds (sanitizers)");
    return;
  }
  const TestModel& model = smollm2();
  kvcache::KvStorage storage(model.config.kv_geometry(kvcache::KvType::kF16, 32), 1);
  for (const std::uint32_t max_sequences : {17U, 300U}) {
    CpuExecutorOptions options;
    options.num_threads = 1;  // stacks of others are not counted
    options.max_sequences = max_sequences;
    options.isa = best_isa();
    const std::uint64_t before = kvasir::test::held_bytes();
    const CpuExecutor executor(options, model.config, model.weights, storage);
    const auto actual = static_cast<double>(kvasir::test::held_bytes() - before);
    const auto said =
        static_cast<double>(CpuExecutor::buffer_bytes(options, model.config, model.weights));
    INFO(said << " said, " << actual << " held");
    // The objects themselves and malloc's page rounding are not counted, nor is that of the two
    // page buffers.
    CHECK(actual <= said * 1.01 + 2 * kvasir::test::kPageRoundingBytes);
    CHECK(said <= actual * 1.01);
  }
}

TEST_CASE("CpuExecutor: a batch that breaks the contract aborts", "[runtime]") {
  Fixture f;
  CHECK_FALSE(aborts([&] { (void)f.execute({f.chunk}); }));
  const auto broken = [&](const auto& change) {
    BatchChunk chunk = f.chunk;
    chunk.tokens = f.tokens;  // more than are in the chunk
    change(chunk);
    return aborts([&] { (void)f.execute({chunk}); });
  };
  CHECK(broken([](BatchChunk& c) { c.request = nullptr; }));
  CHECK(broken([](BatchChunk& c) {
    c.num_tokens = 0;
    c.first_logits_row = 0;
  }));
  CHECK(broken([](BatchChunk& c) { c.tokens = c.tokens.first(17); }));
  CHECK(broken([](BatchChunk& c) { c.block_tables[0] = c.block_tables[0].first(1); }));
  CHECK(broken([](BatchChunk& c) { c.first_logits_row = 19; }));
  CHECK(broken([](BatchChunk& c) { c.first_position = 15; }));  // reaches a third block
  CHECK(broken([](BatchChunk& c) {
    c.num_tokens = 21;
    c.first_logits_row = 21;
  }));  // over max_step_tokens
  CHECK(broken([](BatchChunk& c) { c.num_prompt_tokens = 61; }));
  const std::vector<BlockId> outside = {BlockId{2}, BlockId{4}};
  CHECK(broken([&](BatchChunk& c) { c.block_tables[0] = outside; }));
  const std::vector<BlockId> long_table(4, BlockId{0});
  CHECK(broken([&](BatchChunk& c) {
    c.block_tables[0] = long_table;
    c.first_position = 39;
  }));  // over the context
  std::vector<TokenId> odd = f.tokens;
  odd[17] = f.model->config.vocab_size;
  CHECK(broken([&](BatchChunk& c) { c.tokens = odd; }));
  CHECK(aborts([&] { (void)f.execute({f.chunk, f.chunk, f.chunk}); }));
  CHECK(aborts([&] { (void)f.executor->kept_logits(0); }));
}
