// What one request's events mean to an observer: first and later tokens, prompts, ends. It is told
// of each event once, by whoever takes it out of the queue, and knows neither text nor doors.
#pragma once

#include "core/clock.h"
#include "engine/events.h"
#include "server/request_observer.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvasir::server {

/// Not thread-safe: calls come one after the other.
class GenerationRecord {
 public:
  struct Choice {
    std::uint32_t prompt_index = 0;
    std::uint32_t max_tokens = 0;
  };

  /// Tells nobody.
  GenerationRecord() = default;
  /// `prompt_tokens` in prompt order, `choices` in order of choice index; `observer` must outlive
  /// the record.
  GenerationRecord(RequestObserver& observer, Operation operation, TimePoint arrival,
                   std::vector<std::uint32_t> prompt_tokens, const std::vector<Choice>& choices);

  /// A token was read that counts for the client.
  void token(std::uint32_t choice_index, TimePoint at);
  /// A stop string was complete in what was read: that is how the choice ends.
  void stopped(std::uint32_t choice_index);
  /// The engine's last word on the choice, read or not.
  void finished(std::uint32_t choice_index, const engine::FinishEvent& event);

 private:
  struct ChoiceState {
    Choice choice;
    std::uint32_t counted_tokens = 0;
    TimePoint last_token{};
    bool stopped = false;
  };
  void count_prompt(std::uint32_t prompt_index);
  void end_request(const SequenceReport& report);

  RequestObserver* observer_ = nullptr;
  Operation operation_{};
  TimePoint arrival_{};
  std::vector<std::uint32_t> prompt_tokens_;
  std::vector<bool> prompt_counted_;  // [num_prompts]
  std::vector<ChoiceState> choices_;
  std::uint32_t unfinished_ = 0;
  bool any_token_ = false;
  RequestReport request_;
};

}  // namespace kvasir::server
