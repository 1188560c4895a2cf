#include "server/running_generation.h"

#include "core/check.h"

#include <algorithm>
#include <mutex>
#include <type_traits>
#include <utility>
#include <variant>

namespace kvasir::server {
namespace {

struct QueuedEvent {
  std::uint32_t choice_index = 0;
  std::variant<engine::TokenEvent, PromptLogprobs, engine::FinishEvent> event;
};

std::size_t queued_bytes(const engine::TokenEvent& event) {
  return sizeof(QueuedEvent) + event.top.size() * sizeof(TokenLogprob);
}

/// What the client is told about a choice that neither stopped nor reached its length.
Error failure_of(const engine::FinishEvent& event) {
  if (event.reason == FinishReason::kError) {
    return event.error.value_or(Error{ErrorCode::kInternal, "the sequence failed", {}});
  }
  switch (event.cancel_cause.value_or(CancelCause::kClientGone)) {
    case CancelCause::kDrain:
      return {ErrorCode::kDraining, "the server is shutting down", {}};
    case CancelCause::kDeadline:
      return {ErrorCode::kDeadlineExceeded, "timeout_ms passed before the answer was complete",
              "timeout_ms"};
    case CancelCause::kSlowClient:
      return {ErrorCode::kCancelled, "the answer was not read fast enough", {}};
    case CancelCause::kStopString:
    case CancelCause::kClientGone:
    case CancelCause::kGrpcCancel:
      break;
  }
  return {ErrorCode::kCancelled, "the request was cancelled", {}};
}

}  // namespace

/// Written by the engine thread, read by the polling one. A finish always gets in: there is one for
/// each choice.
class EventQueue {
 public:
  EventQueue(WakeFunction wake, std::size_t num_choices, std::size_t max_bytes)
      : wake_(std::move(wake)), max_bytes_(max_bytes), bytes_(num_choices, 0) {}

  /// The poller's, up to close().
  [[nodiscard]] GenerationRecord& record() { return record_; }

  /// False when the choice is over its bound; the event is then dropped.
  bool push_token(std::uint32_t choice_index, engine::TokenEvent event) {
    const std::size_t bytes = queued_bytes(event);
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return true;  // nobody reads any more; the cancel is on its way
      if (bytes_[choice_index] + bytes > max_bytes_) return false;
      bytes_[choice_index] += bytes;
      // In place: GCC 12 warns of the other alternatives of a temporary that is moved from.
      events_.emplace_back().choice_index = choice_index;
      events_.back().event = std::move(event);
      if (!std::exchange(wake_wanted_, false)) return true;
    }
    wake();
    return true;
  }

  void push_finish(std::uint32_t choice_index, engine::FinishEvent event) {
    push(choice_index, std::move(event));
  }

  /// Takes room beside the bound: how many there can be was checked before they were asked for.
  void push_prompt_logprobs(std::uint32_t choice_index, PromptLogprobs scores) {
    push(choice_index, std::move(scores));
  }

  /// Takes all and asks for one wake at the next event.
  std::vector<QueuedEvent> take() {
    const std::lock_guard lock(mutex_);
    std::fill(bytes_.begin(), bytes_.end(), 0);
    wake_wanted_ = true;
    return std::exchange(events_, {});
  }

  /// No event is kept and nobody is woken from here on; of what comes unread the record learns
  /// the ends only. Waits for a wake that is running.
  void close() {
    const std::lock_guard wake_lock(wake_mutex_);
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (const QueuedEvent& queued : events_) {
      const auto* finish = std::get_if<engine::FinishEvent>(&queued.event);
      if (finish != nullptr) record_.finished(queued.choice_index, *finish);
    }
    events_.clear();
    wake_ = nullptr;
  }

 private:
  template <typename Event>
  void push(std::uint32_t choice_index, Event event) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) {
        if constexpr (std::is_same_v<Event, engine::FinishEvent>)
          record_.finished(choice_index, event);
        return;
      }
      events_.emplace_back().choice_index = choice_index;
      events_.back().event = std::move(event);
      if (!std::exchange(wake_wanted_, false)) return;
    }
    wake();
  }

  void wake() {
    const std::lock_guard lock(wake_mutex_);
    if (wake_) wake_();
  }

  std::mutex mutex_;
  std::mutex wake_mutex_;  // held while wake_ runs; taken before mutex_
  WakeFunction wake_;
  std::vector<QueuedEvent> events_;
  GenerationRecord record_;         // the poller's until closed_, then guarded by mutex_
  const std::size_t max_bytes_;     // of one choice
  std::vector<std::size_t> bytes_;  // [num_choices]: of its token events
  bool wake_wanted_ = true;
  bool closed_ = false;
};

namespace {

class ChoiceSink final : public engine::TokenSink {
 public:
  ChoiceSink(std::shared_ptr<EventQueue> queue, std::uint32_t choice_index)
      : queue_(std::move(queue)), choice_index_(choice_index) {}
  [[nodiscard]] bool on_token(engine::TokenEvent event) noexcept override {
    return queue_->push_token(choice_index_, std::move(event));
  }
  void on_prompt_logprobs(PromptLogprobs scores) noexcept override {
    queue_->push_prompt_logprobs(choice_index_, std::move(scores));
  }
  void on_finish(engine::FinishEvent event) noexcept override {
    queue_->push_finish(choice_index_, std::move(event));
  }

 private:
  std::shared_ptr<EventQueue> queue_;
  std::uint32_t choice_index_ = 0;
};

}  // namespace

RunningGeneration::RunningGeneration(const text::Tokenizer& tokenizer,
                                     std::vector<std::vector<TokenId>> prompts,
                                     std::vector<Choice> choices, CancelFunction cancel,
                                     WakeFunction wake, bool keeps_answer, PromptRules prompt_rules,
                                     const kvcache::KvGeometry* receipt_of)
    : prompts_(std::move(prompts)),
      prompt_rules_(std::move(prompt_rules)),
      cancel_(std::move(cancel)),
      queue_(std::make_shared<EventQueue>(std::move(wake), choices.size(),
                                          keeps_answer ? kMaxQueuedBytesOfKept : kMaxQueuedBytes)),
      unfinished_(static_cast<std::uint32_t>(choices.size())) {
  if (receipt_of != nullptr) receipt_.emplace(*receipt_of);
  KVASIR_CHECK(prompt_rules_.echo.empty() || prompt_rules_.echo.size() == prompts_.size());
  prompt_answers_.reserve(prompts_.size());
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    prompt_answers_.emplace_back(tokenizer, prompts_[i], prompt_rules_,
                                 prompt_rules_.echo.empty() ? nullptr : &prompt_rules_.echo[i]);
  }
  choices_.reserve(choices.size());
  for (Choice& choice : choices) {
    KVASIR_CHECK(choice.prompt_index < prompts_.size(),
                 choice.prompt_index << " of " << prompts_.size());
    lists_token_ids_ = choice.rules.token_ids;  // all choices have one request's rules
    choices_.push_back(ChoiceState{.sequence = choice.sequence,
                                   .prompt_index = choice.prompt_index,
                                   .assembler = StreamAssembler(tokenizer, std::move(choice.rules)),
                                   .error = {}});
  }
}

RunningGeneration::~RunningGeneration() {
  queue_->close();
  cancel(CancelCause::kClientGone);
}

void RunningGeneration::set_record(GenerationRecord record) {
  queue_->record() = std::move(record);
}

std::shared_ptr<engine::TokenSink> RunningGeneration::sink(std::uint32_t choice_index) const {
  return std::make_shared<ChoiceSink>(queue_, choice_index);
}

std::vector<ChoiceDelta> RunningGeneration::poll() {
  for (QueuedEvent& queued : queue_->take()) {
    ChoiceState& choice = choices_[queued.choice_index];
    if (const auto* scores = std::get_if<PromptLogprobs>(&queued.event)) {
      prompt_answers_[choice.prompt_index].add(*scores);
      continue;
    }
    choice.touched = true;
    if (const auto* token = std::get_if<engine::TokenEvent>(&queued.event)) {
      absorb_token(queued.choice_index, *token);
    } else {
      absorb_finish(queued.choice_index, std::get<engine::FinishEvent>(queued.event));
    }
  }
  std::vector<ChoiceDelta> deltas;
  for (std::uint32_t i = 0; i < choices_.size(); ++i) {
    if (auto delta = take_delta(i)) deltas.push_back(std::move(*delta));
  }
  return deltas;
}

/// A choice begins when its prompt's logprobs are all there: they come with the prompt's first
/// choice, which its siblings may overtake.
std::optional<ChoiceDelta> RunningGeneration::take_delta(std::uint32_t choice_index) {
  ChoiceState& choice = choices_[choice_index];
  const PromptAnswer& prompt = prompt_answers_[choice.prompt_index];
  if (!choice.touched || (!prompt.complete() && !choice.error)) return std::nullopt;
  choice.touched = false;
  ChoiceDelta delta = choice.assembler.take();
  delta.choice_index = choice_index;
  delta.error = std::exchange(choice.error, {});
  if (!choice.began && !delta.error) choice.began = prompt.echo_into(delta);
  if (delta.text.empty() && !delta.finish && !delta.error) return std::nullopt;
  return delta;
}

void RunningGeneration::absorb_token(std::uint32_t choice_index, const engine::TokenEvent& event) {
  ChoiceState& choice = choices_[choice_index];
  const std::uint32_t counted_before = choice.assembler.counted_tokens();
  const bool stops = choice.assembler.push(event);
  if (choice.assembler.counted_tokens() > counted_before)
    queue_->record().token(choice_index, event.at);
  if (!stops) return;
  queue_->record().stopped(choice_index);
  cancel_({.id = choice.sequence,
           .cause = CancelCause::kStopString,
           .counted_tokens = choice.assembler.counted_tokens()});
}

// The finish of a choice that a stop string ended goes out with the engine's finish and not before:
// its blocks are home by then, and the usage is complete.
void RunningGeneration::absorb_finish(std::uint32_t choice_index,
                                      const engine::FinishEvent& event) {
  queue_->record().finished(choice_index, event);
  ChoiceState& choice = choices_[choice_index];
  choice.finished = true;
  --unfinished_;
  choice.cached_tokens = event.usage.cached_tokens;
  if (receipt_) receipt_->add(event.usage);
  const bool natural = event.reason == FinishReason::kStop || event.reason == FinishReason::kLength;
  if (natural || choice.assembler.stopped()) {
    choice.assembler.finish(event.reason, event.stop_token);
  } else {
    choice.error = failure_of(event);
  }
}

bool RunningGeneration::done() const { return unfinished_ == 0; }

Usage RunningGeneration::usage() const {
  Usage usage;
  for (const auto& prompt : prompts_) usage.prompt_tokens += prompt.size();
  std::vector<std::uint32_t> cached(prompts_.size(), 0);
  std::vector<bool> seen(prompts_.size(), false);
  for (const ChoiceState& choice : choices_) {
    usage.completion_tokens += choice.assembler.counted_tokens();
    // The first choice of a prompt speaks for it; the others find its blocks in the cache.
    if (!seen[choice.prompt_index]) cached[choice.prompt_index] = choice.cached_tokens;
    seen[choice.prompt_index] = true;
  }
  for (const std::uint32_t tokens : cached) usage.cached_tokens += tokens;
  if (receipt_ && done()) usage.kv_cache = receipt_->receipt();
  return usage;
}

std::uint32_t RunningGeneration::num_choices() const {
  return static_cast<std::uint32_t>(choices_.size());
}

void RunningGeneration::cancel(CancelCause cause) {
  for (const ChoiceState& choice : choices_) {
    if (!choice.finished) cancel_({.id = choice.sequence, .cause = cause, .counted_tokens = {}});
  }
}

}  // namespace kvasir::server
