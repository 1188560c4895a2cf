#include "server/generation_record.h"

#include <algorithm>
#include <utility>

namespace kvasir::server {
namespace {

SequenceReport report_of(const engine::FinishEvent& event, bool stopped) {
  SequenceReport report;
  report.reason = event.reason;
  report.queue_time = event.usage.queue_time;
  report.prefill_time = event.usage.prefill_time;
  report.decode_time = event.usage.decode_time;
  if (stopped) {
    report.reason = FinishReason::kStop;
  } else if (event.reason == FinishReason::kCancelled) {
    report.cause = event.cancel_cause.value_or(CancelCause::kClientGone);
  } else if (event.reason == FinishReason::kError && event.error &&
             event.error->code == ErrorCode::kDeadlineExceeded) {
    report.reason = FinishReason::kCancelled;
    report.cause = CancelCause::kDeadline;
  }
  return report;
}

}  // namespace

GenerationRecord::GenerationRecord(RequestObserver& observer, Operation operation,
                                   TimePoint arrival, std::vector<std::uint32_t> prompt_tokens,
                                   const std::vector<Choice>& choices)
    : observer_(&observer),
      operation_(operation),
      arrival_(arrival),
      prompt_tokens_(std::move(prompt_tokens)),
      prompt_counted_(prompt_tokens_.size(), false),
      unfinished_(static_cast<std::uint32_t>(choices.size())) {
  choices_.reserve(choices.size());
  for (const Choice& choice : choices) choices_.push_back({.choice = choice});
  request_.operation = operation;
}

void GenerationRecord::token(std::uint32_t choice_index, TimePoint at) {
  if (observer_ == nullptr) return;
  ChoiceState& choice = choices_[choice_index];
  count_prompt(choice.choice.prompt_index);
  if (choice.counted_tokens == 0) {
    observer_->on_first_token(operation_, !std::exchange(any_token_, true), at - arrival_);
  } else {
    observer_->on_next_token(at - choice.last_token);
  }
  ++choice.counted_tokens;
  choice.last_token = at;
}

void GenerationRecord::stopped(std::uint32_t choice_index) {
  if (observer_ != nullptr) choices_[choice_index].stopped = true;
}

void GenerationRecord::finished(std::uint32_t choice_index, const engine::FinishEvent& event) {
  if (observer_ == nullptr) return;
  const ChoiceState& choice = choices_[choice_index];
  SequenceReport report = report_of(event, choice.stopped);
  report.prompt_tokens = prompt_tokens_[choice.choice.prompt_index];
  report.completion_tokens = choice.counted_tokens;
  report.max_tokens = choice.choice.max_tokens;
  report.latency = event.at - arrival_;
  if (report.complete()) count_prompt(choice.choice.prompt_index);
  observer_->on_sequence_end(operation_, report);
  end_request(report);
}

void GenerationRecord::end_request(const SequenceReport& report) {
  request_.max_completion_tokens =
      std::max(request_.max_completion_tokens, report.completion_tokens);
  request_.latency = report.latency;  // ends come in order
  if (!report.complete() && !request_.failure) {
    request_.failure = report.reason;
    request_.cause = report.cause;
  }
  if (--unfinished_ == 0) observer_->on_request_end(request_);
}

void GenerationRecord::count_prompt(std::uint32_t prompt_index) {
  if (prompt_counted_[prompt_index]) return;
  prompt_counted_[prompt_index] = true;
  observer_->on_prompt(prompt_tokens_[prompt_index]);
}

}  // namespace kvasir::server
