// Small honest stand-ins for what surrounds the engine: an executor whose tokens are a pure
// function of the sequence's prefix, and a sink that records. No KV bytes are kept here; tests/sim
// has the shadow that proves those.
#pragma once

#include "core/rng.h"
#include "engine/events.h"
#include "runtime/executor.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvasir::testing {

/// The token that follows `prefix`, in [0, vocab_size).
inline TokenId token_after(std::span<const TokenId> prefix, std::uint32_t vocab_size) {
  std::uint64_t hash = 1;
  for (const TokenId token : prefix) hash = mix64(hash ^ token);
  return static_cast<TokenId>(hash % vocab_size);
}

/// The logprob of a prompt's token: like every token, a function of what is before it.
inline float logprob_after(std::span<const TokenId> prefix, TokenId token) {
  return -static_cast<float>((token_after(prefix, 1U << 16U) ^ token) % 1000);
}

/// The scores that a chunk's rows give: rank 1 and one best token, the id of the row's own.
inline PromptLogprobs scores_of(const runtime::BatchChunk& chunk) {
  PromptLogprobs scores;
  scores.sequence = chunk.sequence;
  scores.first_token = chunk.first_position + chunk.first_logits_row + 1;
  scores.num_top = std::min(*chunk.request->prompt_logprobs, 1U);
  for (std::uint32_t i = chunk.first_logits_row; i < chunk.end_of_scored_rows(); ++i) {
    const std::uint32_t next = chunk.first_position + i + 1;
    const float logprob = logprob_after(chunk.tokens.first(next), chunk.tokens[next]);
    scores.tokens.push_back({.logprob = logprob, .rank = 1});
    if (scores.num_top == 1) scores.top.push_back({chunk.tokens[next - 1], logprob});
  }
  return scores;
}

class PrefixExecutor final : public runtime::Executor {
 public:
  explicit PrefixExecutor(std::uint32_t vocab_size) : vocab_size_(vocab_size) {}

  [[nodiscard]] bool same_slots(BlockId, BlockId, std::uint32_t) const override { return true; }
  Result<StepResult> execute(const runtime::Batch& batch) override {
    if (before_step) before_step(batch);
    if (fail_next) {
      fail_next = false;
      return fail(ErrorCode::kInternal, "scripted failure");
    }
    StepResult result;
    for (const runtime::BatchChunk& chunk : batch.chunks) {
      if (chunk.first_logits_row < chunk.end_of_scored_rows()) {
        result.prompts.push_back(scores_of(chunk));
      }
      if (!chunk.samples()) continue;
      SampledToken sampled;
      sampled.sequence = chunk.sequence;
      sampled.token = token_after(chunk.tokens, vocab_size_);
      sampled.logprob = -1.0F;
      result.sampled.push_back(sampled);
    }
    return result;
  }

  std::function<void(const runtime::Batch&)> before_step;
  bool fail_next = false;

 private:
  std::uint32_t vocab_size_;
};

/// Records every event; refuses tokens past `capacity`. wait_finish() blocks a test thread until
/// the end.
class RecordingSink final : public engine::TokenSink {
 public:
  explicit RecordingSink(std::size_t capacity = SIZE_MAX) : capacity_(capacity) {}

  bool on_token(engine::TokenEvent event) noexcept override {
    const std::lock_guard lock(mutex_);
    if (finish_) out_of_order_ = true;
    tokens_.push_back(event.token);
    return tokens_.size() <= capacity_;
  }
  void on_prompt_logprobs(PromptLogprobs scores) noexcept override {
    const std::lock_guard lock(mutex_);
    if (finish_ || !tokens_.empty()) out_of_order_ = true;  // they come before all tokens
    scores_.push_back(std::move(scores));
  }
  void on_finish(engine::FinishEvent event) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      ++num_finishes_;
      finish_ = std::move(event);
    }
    finished_.notify_all();
  }

  [[nodiscard]] std::vector<TokenId> tokens() const {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }
  [[nodiscard]] std::vector<PromptLogprobs> scores() const {
    const std::lock_guard lock(mutex_);
    return scores_;
  }
  [[nodiscard]] std::optional<engine::FinishEvent> finish() const {
    const std::lock_guard lock(mutex_);
    return finish_;
  }
  /// Exactly one finish, and nothing after it; no prompt logprobs after a token.
  [[nodiscard]] bool ended_well() const {
    const std::lock_guard lock(mutex_);
    return num_finishes_ == 1 && !out_of_order_;
  }
  engine::FinishEvent wait_finish() {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return finish_.has_value(); });
    return *finish_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable finished_;
  std::size_t capacity_;
  std::vector<TokenId> tokens_;
  std::vector<PromptLogprobs> scores_;
  std::optional<engine::FinishEvent> finish_;
  std::size_t num_finishes_ = 0;
  bool out_of_order_ = false;
};

}  // namespace kvasir::testing
