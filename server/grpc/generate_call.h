// One generating call in flight, unary or streaming: its state from arrival to the status that ends
// it. Work happens on the door's own two threads: parsing and tokenising on one, so that a large
// prompt delays no stream, and turning tokens into messages on the other. gRPC's threads and the
// engine's only post.
#pragma once

#include "core/clock.h"
#include "core/result.h"
#include "server/generate_service.h"
#include "server/generation.h"
#include "server/grpc/call_gate.h"
#include "server/grpc/call_limits.h"
#include "server/grpc/call_record.h"
#include "server/grpc/convert.h"
#include "server/grpc/send_watch.h"
#include "server/grpc/wire.h"
#include "server/grpc/worker.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace kvasir::server {

/// What a call needs of the door. Shared, because the engine may wake a call while the server is
/// torn down.
struct CallWorkers {
  Worker prepare;
  Worker pump;
};

/// What the call says to the function that starts its generation.
struct CallStart {
  std::optional<std::int64_t> remaining_ms;  // what the call's deadline leaves; absent without one
  CallContext context;
  WakeFunction wake;
};

/// Parses, validates and submits; runs on the prepare thread.
using StartFunction = std::function<Result<std::shared_ptr<Generation>>(CallStart start)>;

/// The state machine, free of the reactor's shape. Finished exactly once; a write is started only
/// when the one before has ended.
class GenerateCall : public std::enable_shared_from_this<GenerateCall> {
 public:
  virtual ~GenerateCall() = default;
  GenerateCall(const GenerateCall&) = delete;
  GenerateCall& operator=(const GenerateCall&) = delete;

  /// gRPC's thread: queues the start.
  void begin(StartFunction start);

 protected:
  GenerateCall(grpc::CallbackServerContext& context, std::shared_ptr<CallWorkers> workers,
               Admission admission, CallRecord record);

  /// The reactor's OnCancel: the client left, or the deadline passed.
  void on_cancelled();
  /// The reactor's OnWriteDone.
  void on_written(bool ok);
  /// The reactor's OnDone: the last thing that happens to a call, and its line in the log.
  void release();

  /// Called with the lock held, on the pump thread. True: a write was started, and on_written()
  /// will follow. An exception ends the call; it must come before the write starts.
  [[nodiscard]] virtual bool deliver(std::vector<ChoiceDelta> deltas,
                                     const Generation& generation) = 0;
  /// Called with the lock held, once: everything was delivered. As with deliver(), an exception
  /// must come before anything is sent.
  virtual void finish_complete(const Generation& generation) = 0;
  /// Called with the lock held, once.
  virtual void finish_failed(const grpc::Status& status) = 0;

 private:
  void prepare(const StartFunction& start);
  void post_pump();
  void pump();
  void pump_once();
  void fail_call(const Error& error, CancelCause cause);
  void on_stalled();
  [[nodiscard]] bool deadline_passed() const;
  [[nodiscard]] std::optional<std::int64_t> remaining_ms() const;
  [[nodiscard]] Error cancelled_error() const;
  [[nodiscard]] CancelCause cancelled_cause() const;

  grpc::CallbackServerContext& context_;  // lives until the call is finished and done
  const std::chrono::system_clock::time_point
      deadline_;  // of gRPC; the far future if the client set none
  const std::shared_ptr<CallWorkers> workers_;
  const std::uint64_t tenant_;
  const std::chrono::milliseconds write_timeout_;
  const GenerateService& service_;
  std::atomic<bool> gone_{false};       // nobody waits any more: what prepares may stop
  std::shared_ptr<SendWatch> watch_;    // from begin() on
  std::shared_ptr<GenerateCall> self_;  // keeps the reactor until gRPC is done with it

  std::mutex mutex_;  // guards what follows
  /// Given back just before gRPC gets the call's end, when HTTP/2 still counts the stream. Not so
  /// while the call is being prepared: one that was reset then still holds its message, and its
  /// ticket goes with its memory.
  std::unique_ptr<CallLimits::Ticket> ticket_;
  CallRecord record_;
  bool preparing_ = true;
  std::shared_ptr<Generation> generation_;
  bool cancelled_ = false;
  bool finished_ = false;
  bool writing_ = false;
};

/// Answers with one message when all choices have ended.
template <typename Response>
class UnaryGenerateCall final : public GenerateCall, public grpc::ServerUnaryReactor {
 public:
  UnaryGenerateCall(grpc::CallbackServerContext& context, std::shared_ptr<CallWorkers> workers,
                    Admission admission, CallRecord record, const AnswerHead& head,
                    grpc::ByteBuffer& out)
      : GenerateCall(context, std::move(workers), std::move(admission), std::move(record)),
        out_(out) {
    fill_head(head, response_);
  }

  void OnCancel() override { on_cancelled(); }
  void OnDone() override { release(); }

 private:
  bool deliver(std::vector<ChoiceDelta> deltas, const Generation& generation) override {
    while (response_.choices_size() < static_cast<int>(generation.num_choices())) {
      const int index = response_.choices_size();
      response_.add_choices()->set_index(static_cast<std::uint32_t>(index));
    }
    for (ChoiceDelta& delta : deltas) {
      const int index = static_cast<int>(delta.choice_index);
      append_delta(std::move(delta), *response_.mutable_choices(index));
    }
    return false;
  }

  void finish_complete(const Generation& generation) override {
    fill_prompt_token_ids(generation, response_);
    for (std::uint32_t i = 0; i < generation.prompt_token_ids().size(); ++i)
      add_prompt_logprobs(generation, i, response_);
    fill_usage(generation.usage(), *response_.mutable_usage());
    out_ = serialize_message(response_);
    Finish(grpc::Status::OK);
  }

  void finish_failed(const grpc::Status& status) override { Finish(status); }

  Response response_;
  grpc::ByteBuffer& out_;
};

/// Writes a message for whatever became ready; the last one carries the usage.
template <typename Chunk>
class StreamGenerateCall final : public GenerateCall,
                                 public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  StreamGenerateCall(grpc::CallbackServerContext& context, std::shared_ptr<CallWorkers> workers,
                     Admission admission, CallRecord record, AnswerHead head)
      : GenerateCall(context, std::move(workers), std::move(admission), std::move(record)),
        head_(std::move(head)) {}

  void OnCancel() override { on_cancelled(); }
  void OnWriteDone(bool ok) override { on_written(ok); }
  void OnDone() override { release(); }

 private:
  bool deliver(std::vector<ChoiceDelta> deltas, const Generation& generation) override {
    Chunk chunk = next_chunk(generation);
    for (ChoiceDelta& delta : deltas) {
      add_prompt_of(delta.choice_index, generation, chunk);
      append_delta(std::move(delta), *chunk.add_choices());
    }
    if (generation.done()) {
      fill_usage(generation.usage(), *chunk.mutable_usage());
      usage_sent_ = true;
    }
    buffer_ = serialize_message(chunk);
    StartWrite(&buffer_);
    return true;
  }

  void finish_complete(const Generation& generation) override {
    if (usage_sent_) {
      Finish(grpc::Status::OK);
      return;
    }
    Chunk chunk = next_chunk(generation);
    fill_usage(generation.usage(), *chunk.mutable_usage());
    buffer_ = serialize_message(chunk);
    StartWriteAndFinish(&buffer_, grpc::WriteOptions(), grpc::Status::OK);
  }

  void finish_failed(const grpc::Status& status) override { Finish(status); }

  /// With the first piece of any choice of a prompt, when its logprobs are complete.
  void add_prompt_of(std::uint32_t choice_index, const Generation& generation, Chunk& chunk) {
    const auto num_prompts = static_cast<std::uint32_t>(generation.prompt_token_ids().size());
    const std::uint32_t prompt = choice_index / (generation.num_choices() / num_prompts);
    prompts_sent_.resize(num_prompts, false);
    if (prompts_sent_[prompt]) return;
    prompts_sent_[prompt] = true;
    add_prompt_logprobs(generation, prompt, chunk);
  }

  Chunk next_chunk(const Generation& generation) {
    Chunk chunk;
    fill_head(head_, chunk);
    if (!std::exchange(first_sent_, true)) fill_prompt_token_ids(generation, chunk);
    return chunk;
  }

  const AnswerHead head_;
  grpc::ByteBuffer buffer_;         // of the write in flight
  std::vector<bool> prompts_sent_;  // [prompts]: their logprobs
  bool first_sent_ = false;
  bool usage_sent_ = false;
};

}  // namespace kvasir::server
