// What happens to requests, told to whoever counts it. A request is one call of a door; each of its
// prompts has n choices, and each choice of each prompt is a sequence. The observer changes nothing
// and is never waited for.
#pragma once

#include "core/clock.h"
#include "core/result.h"
#include "core/step_plan.h"

#include <cstdint>
#include <optional>

namespace kvasir::server {

enum class Operation : std::uint8_t { kTextCompletion, kChat };

/// A sequence that ended, in the words of its client: one that a stop string ended is kStop, a
/// passed deadline is kCancelled.
struct SequenceReport {
  FinishReason reason = FinishReason::kStop;
  std::optional<CancelCause> cause;  // for kCancelled
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;  // counted ones
  std::uint32_t max_tokens = 0;         // as resolved
  Duration latency{};                   // arrival to end
  Duration queue_time{};
  Duration prefill_time{};
  Duration decode_time{};

  /// It gave all that was asked of it.
  [[nodiscard]] bool complete() const {
    return reason == FinishReason::kStop || reason == FinishReason::kLength;
  }
};

/// A request all of whose sequences ended.
struct RequestReport {
  Operation operation{};
  /// Absent: all were complete. Else of the first that was not: kCancelled or kError.
  std::optional<FinishReason> failure;
  std::optional<CancelCause> cause;         // for kCancelled
  std::uint32_t max_completion_tokens = 0;  // of the longest sequence
  Duration latency{};                       // arrival to the last end
};

/// Any thread, the engine's too: calls return at once. Times run from the request's arrival.
class RequestObserver {
 public:
  virtual ~RequestObserver() = default;

  /// Refused before it became sequences.
  virtual void on_refused(ErrorCode code) noexcept = 0;
  /// Wanted by nobody any more, or too late, before it became so many sequences.
  virtual void on_abandoned(CancelCause cause, std::uint64_t sequences) noexcept = 0;
  /// Became sequences; `n` choices for each prompt.
  virtual void on_started(std::uint32_t n) noexcept = 0;
  /// A prompt was computed, once for all of its choices: with the first event of any.
  virtual void on_prompt(std::uint32_t prompt_tokens) noexcept = 0;
  /// The first counted token of a sequence; of its whole request if `first_of_request`.
  virtual void on_first_token(Operation operation, bool first_of_request,
                              Duration since_arrival) noexcept = 0;
  /// Any later counted token.
  virtual void on_next_token(Duration since_last) noexcept = 0;
  virtual void on_sequence_end(Operation operation, const SequenceReport& report) noexcept = 0;
  virtual void on_request_end(const RequestReport& report) noexcept = 0;
};

}  // namespace kvasir::server
