// The whole engine over a small random model: real scheduler, KV books, arena and forward pass, on
// a clock that stands still. What a request gives there is compared with what it gives cold, bit
// for bit.
#pragma once

#include "core/clock.h"
#include "engine/engine.h"
#include "kvcache/kv_storage.h"
#include "runtime/cpu_executor.h"
#include "tests/runtime/decoder/test_models.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvasir::engine::test {

inline constexpr std::uint32_t kBlockTokens = 16;

/// All that must be equal, floats as their bits.
struct Answer {
  std::vector<TokenId> tokens;
  std::vector<std::uint32_t> logprob_bits;  // of each token, then of its best ones
  std::vector<TokenId> top;
  friend bool operator==(const Answer&, const Answer&) = default;
};

class AnswerSink final : public TokenSink {
 public:
  [[nodiscard]] bool on_token(TokenEvent event) noexcept override;
  void on_finish(FinishEvent event) noexcept override { finish = std::move(event); }
  SequenceId id{};
  Answer answer;
  std::optional<FinishEvent> finish;
};

/// Shows each batch to the test, then lets the real executor compute it.
class WatchedExecutor final : public runtime::Executor {
 public:
  explicit WatchedExecutor(runtime::Executor& inner) : inner_(inner) {}
  [[nodiscard]] Result<StepResult> execute(const runtime::Batch& batch) override;
  [[nodiscard]] bool same_slots(BlockId a, BlockId b, std::uint32_t num_slots) const override {
    return inner_.same_slots(a, b, num_slots);
  }
  std::function<void(const runtime::Batch&)> before_step;
  bool fail_next = false;

 private:
  runtime::Executor& inner_;
};

struct ModelEngineOptions {
  std::uint32_t num_blocks = 256;
  std::uint32_t max_step_tokens = 24;
  std::uint32_t max_sequences = 8;
  std::uint32_t num_threads = 1;
  bool prefix_cache = true;
  scheduler::AdmissionPolicy admission = scheduler::AdmissionPolicy::kOptimistic;
  double audit_rate = 0.0;
  kvcache::KvType kv_type = kvcache::KvType::kF16;
};

class ModelEngine {
 public:
  /// The arena starts as NaN patterns. `model` must outlive it.
  ModelEngine(const runtime::test::TestModel& model, const ModelEngineOptions& options);

  std::shared_ptr<AnswerSink> submit(Request request);
  /// As one submission, which is what forks are.
  std::vector<std::shared_ptr<AnswerSink>> submit_together(std::vector<Request> requests);
  /// Until there is nothing to do, audits included.
  void run_until_idle();
  /// The request alone, from submission to its end; audits are left for later.
  std::shared_ptr<AnswerSink> run(Request request);

  [[nodiscard]] kvcache::KvStorage& storage() { return storage_; }
  [[nodiscard]] const std::vector<std::string>& findings() const { return findings_; }
  [[nodiscard]] EngineStatus status() const { return engine_->status(); }

 private:
  kvcache::KvStorage storage_;
  runtime::CpuExecutor cpu_;
  std::vector<std::string> findings_;

 public:
  VirtualClock clock;
  WatchedExecutor executor;

 private:
  std::unique_ptr<Engine> engine_;

 public:
  [[nodiscard]] Engine& engine() { return *engine_; }
};

/// Sampled from the whole distribution by `seed`, with the two best tokens of each.
Request sampled_request(std::vector<TokenId> prompt, std::uint32_t max_tokens, std::uint64_t seed);
/// `length` tokens that depend on the seed alone.
std::vector<TokenId> random_tokens(std::uint64_t seed, std::size_t length);

/// The same, and told of a token that could end it, which is never sampled: so the engine does not
/// know how long the answer gets.
Request may_end(Request request);
/// The first tokens of an answer to a sampled_request().
Answer beginning(Answer answer, std::size_t num_tokens);

/// What requests give without a cache, alone, in chunks of another size: computed once each.
class ColdRuns {
 public:
  explicit ColdRuns(const runtime::test::TestModel& model) : model_(model) {}
  const Answer& answer(const Request& request);

 private:
  struct Known {
    Request request;
    Answer answer;
  };
  const runtime::test::TestModel& model_;
  std::vector<Known> known_;
};

/// A small random model for each arrangement of windows that is served.
struct NamedModel {
  std::string name;
  std::unique_ptr<runtime::test::TestModel> model;
};
const std::vector<NamedModel>& small_models();
/// Blocks for `tenths` tenths of a sequence of so many tokens, which is less where windows are.
std::uint32_t blocks_for(const NamedModel& model, std::uint32_t num_tokens, std::uint32_t tenths,
                         const ModelEngineOptions& options = {});

}  // namespace kvasir::engine::test
