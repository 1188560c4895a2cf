#include "engine/engine.h"

#include "core/check.h"
#include "engine/batch_builder.h"
#include "engine/mailbox.h"
#include "engine/retry_after.h"
#include "engine/truth_check.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/absorb.h"
#include "scheduler/apply.h"
#include "scheduler/forecast.h"
#include "scheduler/plan.h"
#include "scheduler/scheduler_state.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace kvasir::engine {

namespace {

/// An event on its way to its sink.
template <typename Event>
struct Outgoing {
  SequenceId id{};
  std::shared_ptr<TokenSink> sink;
  Event event;
};

SequenceUsage usage_event(const scheduler::Sequence& sequence, std::uint64_t bytes_per_block,
                          TimePoint now) {
  const scheduler::Usage usage = scheduler::usage_of(sequence, now);
  return SequenceUsage{.prompt_tokens = usage.prompt_tokens,
                       .completion_tokens = usage.completion_tokens,
                       .cached_tokens = usage.cached_tokens,
                       .computed_tokens = usage.computed_tokens,
                       .recomputed_tokens = usage.recomputed_tokens,
                       .preemptions = usage.preemptions,
                       .peak_kv_bytes = usage.kv.peak_blocks * bytes_per_block,
                       .shared_kv_bytes = usage.kv.shared_blocks * bytes_per_block,
                       .taken_kv_bytes = usage.kv.taken_blocks * bytes_per_block,
                       .returned_kv_bytes = usage.kv.returned_blocks * bytes_per_block,
                       .attention_scores_all_layers = usage.attention_scores,
                       .queue_time = usage.queue_time,
                       .prefill_time = usage.prefill_time,
                       .decode_time = usage.decode_time};
}

}  // namespace

struct Engine::Impl {
  Impl(const EngineOptions& engine_options, runtime::Executor& step_executor,
       const Clock& step_clock)
      : options(engine_options),
        executor(step_executor),
        clock(step_clock),
        kv(kvcache::KvCacheOptions{.geometry = engine_options.geometry,
                                   .num_blocks = engine_options.num_blocks,
                                   .model_hash = engine_options.model_hash,
                                   .prefix_cache_enabled = engine_options.prefix_cache}),
        truth_check({.rate = engine_options.audit_rate,
                     .max_step_tokens = engine_options.limits.max_step_tokens,
                     .on_finding = [this](const std::string& what) { findings.push_back(what); }}) {
    publish();
  }

  // ---- any thread ----

  [[nodiscard]] Result<void> submit(std::vector<Submit> submissions) {
    const std::uint64_t count = submissions.size();
    std::uint64_t held = live_sequences.load();
    do {
      if (Result<void> room = check_room(held, count); !room) return room;
    } while (!live_sequences.compare_exchange_weak(held, held + count));
    if (!mailbox.post_submissions(std::move(submissions))) {
      live_sequences.fetch_sub(count);
      return fail(ErrorCode::kDraining, "the server is shutting down");
    }
    return {};
  }

  [[nodiscard]] std::uint64_t capacity() const {
    return std::uint64_t{options.max_waiting_sequences} + options.limits.max_sequences;
  }

  [[nodiscard]] Result<void> check_room(std::uint64_t held, std::uint64_t count) const {
    if (count > capacity()) {
      return fail(
          ErrorCode::kInvalidValue,
          "the request asks for " + std::to_string(count) +
              " sequences, more than may run and wait together: " + std::to_string(capacity()),
          "n");
    }
    if (held + count <= capacity()) return {};
    return fail(ErrorCode::kQueueFull, "the queue is full: " + std::to_string(held) +
                                           " sequences are running or waiting, the limit is " +
                                           std::to_string(capacity()));
  }

  [[nodiscard]] EngineStatus status() const {
    const std::lock_guard lock(status_mutex);
    return published_status;
  }

  // ---- engine thread ----

  bool step() {
    const TimePoint started = clock.now();
    cancel_slow(started);
    run_commands(mailbox.take(), started);
    if (ends_now(started)) cancel_all(CancelCause::kDrain, started);
    if (mailbox.sealed()) truth_check.abandon(kv);
    publish();  // busy from here on: a step that never ends must show
    if (state.empty()) return idle_step();
    truth_check.interrupt(kv);
    const StepPlan plan = scheduler::plan(state, kv, options.limits, started);
    KVASIR_CHECK(!plan.empty(), "an empty plan with live sequences:\n"
                                    << scheduler::to_text(state));
    for (scheduler::Finish& finish : scheduler::apply(plan, state, kv, started)) {
      finish_sequence(std::move(finish), started);
    }
    truth_check.sample(plan, state);
    if (!plan.chunks.empty()) run_batch(plan);
    const TimePoint ended = clock.now();
    totals.step_time_total += ended - started;
    step_times.add(ended - started);
    publish();
    deliver();
    return true;
  }

  /// Nothing runs or waits: one stripe of an audit, if there is one.
  bool idle_step() {
    const bool audits = truth_check.has_work();
    if (audits) truth_check.step(kv, executor);
    publish();
    deliver();
    tell_findings();
    return audits;
  }

  /// After publish(): whoever hears of a mismatch finds it in the status.
  void tell_findings() {
    for (const std::string& finding : std::exchange(findings, {})) {
      if (options.on_audit_finding) options.on_audit_finding(finding);
    }
  }

  bool wait_for_work() {
    if (!state.empty()) return true;
    if (mailbox.sealed()) truth_check.abandon(kv);
    if (truth_check.has_work()) return true;
    publish();
    return mailbox.wait();
  }

  void run_commands(std::vector<Command> commands, TimePoint now) {
    for (Command& command : commands) {
      if (auto* submission = std::get_if<Submit>(&command)) {
        sinks.emplace(submission->id, std::move(submission->sink));
        scheduler::submit(
            state, kv, options.limits,
            {submission->id, std::make_shared<const Request>(std::move(submission->request))}, now);
      } else if (const auto* cancelled = std::get_if<Cancel>(&command)) {
        cancel_sequence(*cancelled, now);
      } else {
        drain_deadline = std::get<Drain>(command).deadline;
      }
    }
  }

  [[nodiscard]] bool ends_now(TimePoint now) const {
    return stopping.load() || (drain_deadline.has_value() && now >= *drain_deadline);
  }

  void run_batch(const StepPlan& plan) {
    const TimePoint started = clock.now();
    Result<StepResult> result = executor.execute(build_batch(plan, state, kv));
    const TimePoint ended = clock.now();
    totals.execute_time_total += ended - started;
    if (!result) {
      for (scheduler::Finish& finish : scheduler::fail_step(plan, result.error(), state, kv)) {
        finish_sequence(std::move(finish), ended);
      }
      return;
    }
    count_step_tokens(plan);
    scheduler::StepEvents events = scheduler::absorb(plan, std::move(*result), state, kv, ended);
    for (PromptLogprobs& scores : events.prompts) {
      outgoing_prompts.push_back({scores.sequence, sink_of(scores.sequence), std::move(scores)});
    }
    for (SampledToken& sampled : events.tokens) {
      outgoing_tokens.push_back({sampled.sequence, sink_of(sampled.sequence),
                                 TokenEvent{.token = sampled.token,
                                            .logprob = sampled.logprob,
                                            .top = std::move(sampled.top),
                                            .at = ended}});
    }
    for (scheduler::Finish& finish : events.finishes) finish_sequence(std::move(finish), ended);
  }

  [[nodiscard]] const std::shared_ptr<TokenSink>& sink_of(SequenceId id) const {
    const auto sink = sinks.find(id);
    KVASIR_CHECK(sink != sinks.end(), "no sink for sequence " << value_of(id));
    return sink->second;
  }

  void count_step_tokens(const StepPlan& plan) {
    std::uint64_t tokens = 0;
    for (const Chunk& chunk : plan.chunks) tokens += chunk.num_tokens;
    const auto bound = std::ranges::lower_bound(kStepTokenBounds, tokens);
    ++totals.steps_by_tokens.at(static_cast<std::size_t>(bound - kStepTokenBounds.begin()));
  }

  /// After publish(): whoever has seen its last event finds the status, blocks included, up to
  /// date.
  void deliver() {
    for (Outgoing<PromptLogprobs>& out : outgoing_prompts) {
      out.sink->on_prompt_logprobs(std::move(out.event));
    }
    outgoing_prompts.clear();
    for (Outgoing<TokenEvent>& out : outgoing_tokens) {
      if (!out.sink->on_token(std::move(out.event))) slow.push_back(out.id);
    }
    outgoing_tokens.clear();
    for (Outgoing<FinishEvent>& out : outgoing_finishes) {
      live_sequences.fetch_sub(1);
      out.sink->on_finish(finish_after_refusal(out.id, std::move(out.event)));
    }
    outgoing_finishes.clear();
  }

  /// A sink that refused its last token has lost it: the end must not look like a whole answer.
  [[nodiscard]] FinishEvent finish_after_refusal(SequenceId id, FinishEvent event) const {
    if (std::ranges::find(slow, id) == slow.end()) return event;
    event.reason = FinishReason::kCancelled;
    event.cancel_cause = CancelCause::kSlowClient;
    event.stop_token.reset();
    return event;
  }

  void cancel_slow(TimePoint now) {
    for (const SequenceId id : std::exchange(slow, {})) {
      cancel_sequence({.id = id, .cause = CancelCause::kSlowClient, .counted_tokens = {}}, now);
    }
  }

  void cancel_sequence(const Cancel& cancelled, TimePoint now) {
    std::optional<scheduler::Sequence> sequence = scheduler::remove(state, kv, cancelled.id);
    if (!sequence) return;  // it finished while the command was on its way
    if (cancelled.counted_tokens) {
      totals.wasted_tokens_total += sequence->num_generated() -
                                    std::min(sequence->num_generated(), *cancelled.counted_tokens);
    }
    if (cancelled.cause == CancelCause::kStopString) {
      ++totals.finished_stop_total;
    } else {
      ++totals.cancelled_total.at(static_cast<std::size_t>(cancelled.cause));
    }
    send_finish(cancelled.id, FinishEvent{.reason = FinishReason::kCancelled,
                                          .stop_token = {},
                                          .cancel_cause = cancelled.cause,
                                          .error = {},
                                          .usage = usage_of(*sequence, now),
                                          .at = now});
  }

  void cancel_all(CancelCause cause, TimePoint now) {
    std::vector<SequenceId> ids;
    for (const auto& entry : sinks) ids.push_back(entry.first);
    std::ranges::sort(ids);
    for (const SequenceId id : ids)
      cancel_sequence({.id = id, .cause = cause, .counted_tokens = {}}, now);
  }

  void finish_sequence(scheduler::Finish finish, TimePoint now) {
    switch (finish.reason) {
      case FinishReason::kStop:
        ++totals.finished_stop_total;
        break;
      case FinishReason::kLength:
        ++totals.finished_length_total;
        break;
      case FinishReason::kError:
        if (finish.error->code == ErrorCode::kDeadlineExceeded) {
          ++totals.cancelled_total.at(static_cast<std::size_t>(CancelCause::kDeadline));
        } else {
          ++totals.finished_error_total;
        }
        break;
      case FinishReason::kCancelled:
        KVASIR_CHECK(false, "the scheduler never cancels");
        break;
    }
    send_finish(finish.sequence.id, FinishEvent{.reason = finish.reason,
                                                .stop_token = finish.stop_token,
                                                .cancel_cause = {},
                                                .error = std::move(finish.error),
                                                .usage = usage_of(finish.sequence, now),
                                                .at = now});
  }

  [[nodiscard]] SequenceUsage usage_of(const scheduler::Sequence& sequence, TimePoint now) const {
    return usage_event(sequence, kv.geometry().bytes_per_block(), now);
  }

  void send_finish(SequenceId id, FinishEvent event) {
    const auto sink = sinks.find(id);
    KVASIR_CHECK(sink != sinks.end(), "sequence " << value_of(id) << " finishes a second time");
    outgoing_finishes.push_back(
        {.id = id, .sink = std::move(sink->second), .event = std::move(event)});
    sinks.erase(sink);
  }

  void publish_kv(EngineStatus& now) const {
    const TruthCheck::Holding audit = truth_check.holding(kv);
    now.total_blocks = kv.num_blocks();
    now.free_blocks = kv.num_free_blocks() + audit.blocks;
    now.live_blocks = kv.num_live_blocks() - audit.blocks;
    now.cached_blocks = kv.num_cached_blocks() + audit.cached;
    now.reserved_blocks = static_cast<std::uint32_t>(scheduler::reserved_blocks(state, kv));
    now.bytes_per_block = kv.geometry().bytes_per_block();
    const kvcache::KvTotals& blocks = kv.totals();
    const kvcache::KvTotals& audited = truth_check.books();
    now.taken_blocks_total = blocks.taken - audited.taken;
    now.returned_blocks_total = blocks.returned - audited.returned;
    now.window_returned_blocks_total = blocks.window_returned - audited.window_returned;
    now.reclaimed_blocks_total = blocks.reclaimed;
    const TruthCheckCounts& audits = truth_check.counts();
    now.audited_prefixes_total = audits.prefixes;
    now.audited_tokens_total = audits.tokens;
    now.audit_mismatches_total = audits.mismatches;
    now.audits_given_up_total = audits.given_up;
    now.dropped_blocks_total = blocks.dropped;
  }

  void publish() {
    EngineStatus now = totals;
    now.running_sequences = static_cast<std::uint32_t>(state.running.size());
    now.waiting_sequences = static_cast<std::uint32_t>(state.waiting.size());
    publish_kv(now);
    now.draining = mailbox.sealed();
    now.retry_after_seconds = retry_after_seconds(state, options.limits, step_times);
    now.last_progress = clock.now();
    now.busy = !state.empty() || truth_check.has_work();
    now.steps_total = state.totals.steps;
    now.prompt_tokens_total = state.totals.prompt_tokens;
    now.generation_tokens_total = state.totals.generation_tokens;
    now.computed_tokens_total = state.totals.computed_tokens;
    now.recomputed_tokens_total = state.totals.recomputed_tokens;
    now.prefix_query_tokens_total = state.totals.prefix_query_tokens;
    now.prefix_hit_tokens_total = state.totals.prefix_hit_tokens;
    now.preemptions_total = state.totals.preemptions;
    now.rejected_total = state.totals.rejected;
    const std::lock_guard lock(status_mutex);
    published_status = now;
  }

  const EngineOptions options;
  runtime::Executor& executor;
  const Clock& clock;

  Mailbox mailbox;
  std::atomic<std::uint64_t> next_id{1};
  std::atomic<std::uint64_t> live_sequences{0};  // in the mailbox, waiting or running
  std::atomic<bool> stopping{false};
  mutable std::mutex status_mutex;
  EngineStatus published_status;

  kvcache::KvCacheManager kv;
  scheduler::SchedulerState state;
  TruthCheck truth_check;
  std::vector<std::string> findings;  // of this step's audit, not told yet
  StepTimes step_times;
  std::unordered_map<SequenceId, std::shared_ptr<TokenSink>> sinks;
  std::vector<Outgoing<PromptLogprobs>> outgoing_prompts;  // of this step; delivered first
  std::vector<Outgoing<TokenEvent>> outgoing_tokens;       // then these, then the finishes
  std::vector<Outgoing<FinishEvent>> outgoing_finishes;
  std::vector<SequenceId> slow;  // their sinks were over their bound in the last step
  EngineStatus totals;           // only the counters that are the engine's own
  std::optional<TimePoint> drain_deadline;
};

Engine::Engine(const EngineOptions& options, runtime::Executor& executor, const Clock& clock)
    : impl_(std::make_unique<Impl>(options, executor, clock)) {}
Engine::~Engine() = default;

SequenceId Engine::next_sequence_id() { return SequenceId{impl_->next_id.fetch_add(1)}; }

Result<void> Engine::submit(std::vector<Submit> submissions) {
  return impl_->submit(std::move(submissions));
}

Result<void> Engine::check_room(std::uint64_t count) const {
  return impl_->check_room(impl_->live_sequences.load(), count);
}

void Engine::cancel(const Cancel& cancel) { impl_->mailbox.post(Command{cancel}); }

void Engine::drain(TimePoint deadline) {
  impl_->mailbox.post(Command{Drain{deadline}});
  impl_->mailbox.seal();
}

bool Engine::step() { return impl_->step(); }

bool Engine::wait_for_work() { return impl_->wait_for_work(); }

void Engine::stop() {
  impl_->stopping.store(true);
  impl_->mailbox.seal();
}

EngineStatus Engine::status() const { return impl_->status(); }

}  // namespace kvasir::engine
