// A small engine loop for scheduler tests: real planner and books, blocks of four tokens, and a
// model whose every next token is the number of tokens so far. Slots are not checked here;
// tests/sim does.
#pragma once

#include "kvcache/kv_cache_manager.h"
#include "scheduler/absorb.h"
#include "scheduler/apply.h"
#include "scheduler/plan.h"
#include "scheduler/plan_text.h"
#include "scheduler/scheduler_state.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvasir::scheduler::testing {

inline kvcache::KvCacheOptions small_cache(std::uint32_t num_blocks) {
  kvcache::KvCacheOptions options;
  options.geometry.groups = {
      {.num_layers = 1, .num_kv_heads = 1, .head_dim = 8, .window_tokens = 0}};
  options.geometry.block_tokens = 4;
  options.num_blocks = num_blocks;
  options.copies_partial_stripes = true;
  return options;
}

/// Five windowed layers and one without: 6 blocks for 4 tokens.
inline kvcache::KvCacheOptions windowed_cache(std::uint32_t num_blocks, std::uint32_t window,
                                              std::uint32_t largest_chunk) {
  kvcache::KvCacheOptions options = small_cache(num_blocks);
  options.geometry.groups = {{5, 1, 8, window}, {1, 1, 8, 0}};
  options.geometry.largest_chunk = largest_chunk;
  return options;
}

inline Request request(std::vector<TokenId> prompt, std::uint32_t max_tokens) {
  Request request;
  request.prompt_tokens = std::move(prompt);
  request.stop.max_tokens = max_tokens;
  return request;
}

/// `count` tokens of one kind.
inline std::vector<TokenId> repeat(TokenId token, std::size_t count) {
  return std::vector<TokenId>(count, token);
}

struct Loop {
  kvcache::KvCacheManager kv;
  SchedulerState state;
  StepLimits limits;
  TimePoint now{};
  StepPlan last_plan;
  StepEvents last_events;        // but the finishes
  bool all_banned = false;       // what the model says of every row
  std::vector<Finish> finishes;  // of all steps

  explicit Loop(std::uint32_t num_blocks, StepLimits step_limits = {})
      : Loop(small_cache(num_blocks), step_limits) {}
  /// It expects nothing of an answer's length until one has ended, so that scarcity comes soon.
  explicit Loop(const kvcache::KvCacheOptions& cache, StepLimits step_limits = {})
      : kv(cache), limits(step_limits) {
    state.lengths.mean_256ths = 0;
  }

  void submit(std::uint64_t id, Request wanted) {
    scheduler::submit(state, kv, limits,
                      {SequenceId{id}, std::make_shared<const Request>(std::move(wanted))}, now);
  }

  /// Plans and applies; the text of the plan.
  std::string begin() {
    last_plan = plan(state, kv, limits, now);
    keep(apply(last_plan, state, kv, now));
    return plan_text(last_plan);
  }
  void end() {
    StepResult result;
    for (const Chunk& chunk : last_plan.chunks) {
      if (chunk.first_logits_row == chunk.num_tokens) continue;
      const Sequence& sequence = *state.find(chunk.sequence);
      const std::uint32_t end = chunk.first_position + chunk.num_tokens;
      const std::uint32_t first = chunk.first_position + chunk.first_logits_row;
      if (first < std::min(end, sequence.rows_to_score())) {
        PromptLogprobs& scores = result.prompts.emplace_back();
        scores.sequence = chunk.sequence;
        scores.first_token = first + 1;
        scores.tokens.resize(std::min(end, sequence.rows_to_score()) - first);
      }
      if (!sequence.generates() || end < sequence.num_tokens()) continue;
      SampledToken& sampled = result.sampled.emplace_back();
      sampled.sequence = chunk.sequence;
      sampled.token = sequence.num_tokens();
      sampled.all_banned = all_banned;
    }
    last_events = absorb(last_plan, std::move(result), state, kv, now);
    keep(std::move(last_events.finishes));
    kv.check_integrity();
  }
  std::string step() {
    std::string text = begin();
    end();
    return text;
  }
  std::uint32_t run_until_empty(std::uint32_t most_steps) {
    std::uint32_t steps = 0;
    while (!state.empty() && steps < most_steps) {
      step();
      ++steps;
    }
    return steps;
  }
  [[nodiscard]] const Finish* finish(std::uint64_t id) const {
    for (const Finish& ended : finishes) {
      if (ended.sequence.id == SequenceId{id}) return &ended;
    }
    return nullptr;
  }

 private:
  void keep(std::vector<Finish> ended) {
    for (Finish& one : ended) finishes.push_back(std::move(one));
  }
};

}  // namespace kvasir::scheduler::testing
