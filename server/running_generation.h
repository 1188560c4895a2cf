// The Generation that both doors poll: a bounded queue that the engine thread fills, and one
// assembler for each choice that the polling thread works. It submits nothing; generate_service
// makes it and hands its sinks out.
#pragma once

#include "core/clock.h"
#include "engine/events.h"
#include "server/generation.h"
#include "server/generation_record.h"
#include "server/kv_receipt.h"
#include "server/prompt_answer.h"
#include "server/stream_assembler.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvasir::server {

class EventQueue;  // of one generation; outlives it while the engine still holds sinks

class RunningGeneration final : public Generation {
 public:
  /// The events of one choice that wait for a poll hold at most so many bytes; a choice that has
  /// more is cancelled. It is each choice's own, so that no choice pays for its siblings. A stream
  /// is not polled while a write is outstanding, so that this is what a slow client may leave
  /// unread; an answer that its door keeps is polled at once, and only a door that stands still for
  /// thousands of tokens reaches the larger bound.
  static constexpr std::size_t kMaxQueuedBytes = 256U << 10U;
  static constexpr std::size_t kMaxQueuedBytesOfKept = 4U << 20U;

  struct Choice {
    SequenceId sequence{};
    std::uint32_t prompt_index = 0;
    AssemblyRules rules;
  };
  /// How a choice is ended in the engine.
  using CancelFunction = std::function<void(const engine::Cancel&)>;

  /// `choices` in order of choice index; `keeps_answer` as in CallContext; `receipt_of` null where
  /// no receipt is wanted. `tokenizer`, `receipt_of` and what `cancel` refers to must outlive the
  /// generation.
  RunningGeneration(const text::Tokenizer& tokenizer, std::vector<std::vector<TokenId>> prompts,
                    std::vector<Choice> choices, CancelFunction cancel, WakeFunction wake,
                    bool keeps_answer = false, PromptRules prompt_rules = {},
                    const kvcache::KvGeometry* receipt_of = nullptr);
  /// Cancels what still runs, as if the client had gone.
  ~RunningGeneration() override;
  RunningGeneration(const RunningGeneration&) = delete;
  RunningGeneration& operator=(const RunningGeneration&) = delete;

  /// From here on the record is told of every event. Before the first sink is given out.
  void set_record(GenerationRecord record);
  /// The sink of one choice, to go with its Submit.
  [[nodiscard]] std::shared_ptr<engine::TokenSink> sink(std::uint32_t choice_index) const;

  [[nodiscard]] std::vector<ChoiceDelta> poll() override;
  [[nodiscard]] bool done() const override;
  [[nodiscard]] Usage usage() const override;
  [[nodiscard]] std::uint32_t num_choices() const override;
  [[nodiscard]] bool lists_token_ids() const override { return lists_token_ids_; }
  [[nodiscard]] const std::vector<std::vector<TokenId>>& prompt_token_ids() const override {
    return prompts_;
  }
  [[nodiscard]] std::optional<std::uint32_t> listed_prompt_top() const override {
    return prompt_rules_.listed_top;
  }
  [[nodiscard]] const std::vector<LogprobEntry>& prompt_logprobs(
      std::size_t prompt) const override {
    return prompt_answers_.at(prompt).entries();
  }
  void cancel(CancelCause cause) override;

 private:
  struct ChoiceState {
    SequenceId sequence{};
    std::uint32_t prompt_index = 0;
    StreamAssembler assembler;
    bool touched = false;   // something came for it since its last delta
    bool began = false;     // the echoed prompt is out
    bool finished = false;  // its FinishEvent was polled
    std::uint32_t cached_tokens = 0;
    std::optional<Error> error;
  };
  void absorb_token(std::uint32_t choice_index, const engine::TokenEvent& event);
  void absorb_finish(std::uint32_t choice_index, const engine::FinishEvent& event);

  [[nodiscard]] std::optional<ChoiceDelta> take_delta(std::uint32_t choice_index);

  std::vector<std::vector<TokenId>> prompts_;
  PromptRules prompt_rules_;
  std::vector<PromptAnswer> prompt_answers_;  // [prompts]
  std::vector<ChoiceState> choices_;
  bool lists_token_ids_ = false;
  CancelFunction cancel_;
  std::shared_ptr<EventQueue> queue_;
  std::uint32_t unfinished_ = 0;
  std::optional<KvReceiptSum> receipt_;  // of the choices that have ended; absent: not wanted
};

}  // namespace kvasir::server
