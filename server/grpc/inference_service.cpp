#include "server/grpc/inference_service.h"

#include "core/rng.h"
#include "kvasir/v1/inference.grpc.pb.h"
#include "server/grpc/call_record.h"
#include "server/grpc/convert.h"
#include "server/grpc/facts_message.h"
#include "server/grpc/kv_plan_message.h"
#include "server/grpc/refused_stream.h"
#include "server/grpc/request_message.h"
#include "server/grpc/send_watch.h"
#include "server/grpc/wire.h"
#include "server/kv_plan.h"
#include "server/wall_time.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace kvasir::server {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;
using StreamReactor = grpc::ServerWriteReactor<ByteBuffer>;

template <class Base>
using RawComplete = v1::Inference::WithRawCallbackMethod_Complete<Base>;
template <class Base>
using RawCompleteStream = v1::Inference::WithRawCallbackMethod_CompleteStream<Base>;
template <class Base>
using RawChat = v1::Inference::WithRawCallbackMethod_Chat<Base>;
template <class Base>
using RawChatStream = v1::Inference::WithRawCallbackMethod_ChatStream<Base>;
template <class Base>
using RawTokenize = v1::Inference::WithRawCallbackMethod_Tokenize<Base>;
template <class Base>
using RawDetokenize = v1::Inference::WithRawCallbackMethod_Detokenize<Base>;
template <class Base>
using RawListModels = v1::Inference::WithRawCallbackMethod_ListModels<Base>;
template <class Base>
using RawGetStatus = v1::Inference::WithRawCallbackMethod_GetStatus<Base>;
template <class Base>
using RawPlan = v1::Inference::WithRawCallbackMethod_Plan<Base>;
using RawInference = RawComplete<RawCompleteStream<RawChat<RawChatStream<
    RawTokenize<RawDetokenize<RawListModels<RawGetStatus<RawPlan<v1::Inference::Service>>>>>>>>>;

/// Runs a function on the prepare thread and answers with what it returns.
class PreparedCall final : public ServerUnaryReactor,
                           public std::enable_shared_from_this<PreparedCall> {
 public:
  PreparedCall(CallbackServerContext& context, Admission admission, CallRecord record)
      : ticket_(std::move(admission.ticket)),
        record_(std::move(record)),
        watch_(std::make_shared<SendWatch>(context, admission.write_timeout, [] {})) {}

  template <typename Function>
  void begin(Worker& prepare, Function function) {
    self_ = shared_from_this();
    prepare.post([this, keep = self_, function = std::move(function)] {
      const Result<void> done =
          cancelled_.load() ? Result<void>(fail(ErrorCode::kCancelled, "the call was cancelled"))
                            : guarded(function);
      if (!done) set_failed(record_, done.error().code);
      ticket_.reset();  // before the end, as long as HTTP/2 counts the stream
      Finish(done ? grpc::Status::OK : status_of(done.error()));
      watch_->started();
    });
  }
  void OnCancel() override { cancelled_.store(true); }
  void OnDone() override {
    watch_->call_done();
    log_call(record_);
    const std::shared_ptr<PreparedCall> last = std::move(self_);
  }

 private:
  std::unique_ptr<CallLimits::Ticket> ticket_;
  CallRecord record_;  // the prepare thread's up to Finish(), then OnDone's
  const std::shared_ptr<SendWatch> watch_;
  std::shared_ptr<PreparedCall> self_;
  std::atomic<bool> cancelled_{false};
};

/// The call's deadline, where the request has no timeout of its own; where it has, gRPC cancels the
/// call at the deadline anyway, and a timeout out of range reaches the validator as it was sent.
/// What is left is counted from now, a timeout of the request from its arrival.
void limit_timeout(CallStart& start, GenerateFields& fields) {
  if (fields.timeout_ms) return;
  fields.timeout_ms = start.remaining_ms;
  start.context.arrival.reset();
}

class InferenceService final : public RawInference {
 public:
  InferenceService(GenerateService& service, std::shared_ptr<CallWorkers> workers, CallGate gate)
      : service_(service), workers_(std::move(workers)), gate_(std::move(gate)) {}

  ServerUnaryReactor* Complete(CallbackServerContext* context, const ByteBuffer* request,
                               ByteBuffer* out) override {
    return unary<v1::CompleteResponse>(*context, "Complete", start_complete(*request, false),
                                       "cmpl-", *out);
  }
  StreamReactor* CompleteStream(CallbackServerContext* context,
                                const ByteBuffer* request) override {
    return stream<v1::CompleteChunk>(*context, "CompleteStream", start_complete(*request, true),
                                     "cmpl-");
  }
  ServerUnaryReactor* Chat(CallbackServerContext* context, const ByteBuffer* request,
                           ByteBuffer* out) override {
    return unary<v1::ChatResponse>(*context, "Chat", start_chat(*request, false), "chatcmpl-",
                                   *out);
  }
  StreamReactor* ChatStream(CallbackServerContext* context, const ByteBuffer* request) override {
    return stream<v1::ChatChunk>(*context, "ChatStream", start_chat(*request, true), "chatcmpl-");
  }

  ServerUnaryReactor* Tokenize(CallbackServerContext* context, const ByteBuffer* request,
                               ByteBuffer* out) override {
    return prepared(*context, "Tokenize",
                    [this, message = *request, out] { return tokenize(message, *out); });
  }
  ServerUnaryReactor* Detokenize(CallbackServerContext* context, const ByteBuffer* request,
                                 ByteBuffer* out) override {
    return prepared(*context, "Detokenize",
                    [this, message = *request, out] { return detokenize(message, *out); });
  }
  ServerUnaryReactor* Plan(CallbackServerContext* context, const ByteBuffer* request,
                           ByteBuffer* out) override {
    return prepared(*context, "Plan",
                    [this, message = *request, out] { return plan(message, *out); });
  }

  // These two look at ready facts only, so they answer at once, however much there is to tokenise.
  ServerUnaryReactor* ListModels(CallbackServerContext* context, const ByteBuffer* request,
                                 ByteBuffer* out) override {
    CallRecord record{.method = "ListModels", .metrics = &service_.metrics()};
    v1::ListModelsRequest message;
    const Result<void> parsed = parse_known(*context, *request, message);
    if (parsed) *out = serialize_message(models_message(service_.model()));
    return answered(*context, std::move(record), parsed);
  }
  ServerUnaryReactor* GetStatus(CallbackServerContext* context, const ByteBuffer* request,
                                ByteBuffer* out) override {
    CallRecord record{.method = "GetStatus", .metrics = &service_.metrics()};
    v1::GetStatusRequest message;
    const Result<void> parsed = parse_known(*context, *request, message);
    if (parsed) *out = serialize_message(status_message(kv_status(service_)));
    return answered(*context, std::move(record), parsed);
  }

 private:
  StartFunction start_complete(const ByteBuffer& request, bool streaming) {
    return start(request, streaming, completion_fields,
                 [this](const CompletionFields& fields, CallStart& call) {
                   return service_.complete(fields, std::move(call.wake), call.context);
                 });
  }

  StartFunction start_chat(const ByteBuffer& request, bool streaming) {
    return start(request, streaming, chat_fields,
                 [this](const ChatFields& fields, CallStart& call) {
                   return service_.chat(fields, std::move(call.wake), call.context);
                 });
  }

  /// Parses, converts and submits when the call's turn has come.
  template <typename Message, typename Fields, typename Submit>
  static StartFunction start(const ByteBuffer& request, bool streaming,
                             Result<Fields> (*fields_of)(const Message&), Submit submit) {
    return [request, streaming, fields_of,
            submit](CallStart call) -> Result<std::shared_ptr<Generation>> {
      Message message;
      if (Result<void> parsed = parse_message(request, message); !parsed)
        return tl::unexpected(parsed.error());
      Result<Fields> fields = fields_of(message);
      if (!fields) return tl::unexpected(fields.error());
      fields->stream = streaming;
      limit_timeout(call, *fields);
      // A unary call takes in its answer as it comes, whatever its client does.
      call.context.keeps_answer = !streaming;
      return submit(*fields, call);
    };
  }

  template <typename Response>
  ServerUnaryReactor* unary(CallbackServerContext& context, std::string_view method,
                            StartFunction start, const char* id_prefix, ByteBuffer& out) {
    const AnswerHead head = answer_head(id_prefix);
    CallRecord record{.method = method, .metrics = &service_.metrics(), .id = head.id};
    Result<Admission> admission = gate_.admit(context);
    if (!admission) return answered(context, std::move(record), tl::unexpected(admission.error()));
    const auto call = std::make_shared<UnaryGenerateCall<Response>>(
        context, workers_, std::move(*admission), std::move(record), head, out);
    call->begin(std::move(start));
    return call.get();
  }

  template <typename Chunk>
  StreamReactor* stream(CallbackServerContext& context, std::string_view method,
                        StartFunction start, const char* id_prefix) {
    AnswerHead head = answer_head(id_prefix);
    CallRecord record{.method = method, .metrics = &service_.metrics(), .id = head.id};
    Result<Admission> admission = gate_.admit(context);
    if (!admission) {
      log_call(std::move(record), tl::unexpected(admission.error()));
      return new RefusedStream<ByteBuffer>(refusal(admission.error()));
    }
    const auto call = std::make_shared<StreamGenerateCall<Chunk>>(
        context, workers_, std::move(*admission), std::move(record), std::move(head));
    call->begin(std::move(start));
    return call.get();
  }

  template <typename Function>
  ServerUnaryReactor* prepared(CallbackServerContext& context, std::string_view method,
                               Function function) {
    CallRecord record{.method = method, .metrics = &service_.metrics()};
    Result<Admission> admission = gate_.admit(context);
    if (!admission) return answered(context, std::move(record), tl::unexpected(admission.error()));
    const auto call =
        std::make_shared<PreparedCall>(context, std::move(*admission), std::move(record));
    call->begin(workers_->prepare, std::move(function));
    return call.get();
  }

  /// Parses the message of a caller who may ask.
  Result<void> parse_known(const CallbackServerContext& context, const ByteBuffer& request,
                           google::protobuf::Message& message) const {
    if (const auto tenant = gate_.tenant_of(context); !tenant)
      return tl::unexpected(tenant.error());
    return parse_message(request, message);
  }

  ServerUnaryReactor* answered(CallbackServerContext& context, CallRecord record,
                               const Result<void>& result) const {
    log_call(std::move(record), result);
    ServerUnaryReactor* reactor = context.DefaultReactor();
    reactor->Finish(result ? grpc::Status::OK : refusal(result.error()));
    return reactor;
  }

  [[nodiscard]] grpc::Status refusal(const Error& error) const {
    return status_of(error, service_.retry_after_seconds(error));
  }

  Result<void> tokenize(const ByteBuffer& request, ByteBuffer& out) const {
    v1::TokenizeRequest message;
    if (Result<void> parsed = parse_message(request, message); !parsed) return parsed;
    const Result<TokenizeFields> fields = tokenize_fields(message);
    if (!fields) return tl::unexpected(fields.error());
    const Result<std::vector<TokenId>> tokens = service_.tokenize(*fields);
    if (!tokens) return tl::unexpected(tokens.error());
    v1::TokenizeResponse response;
    response.mutable_tokens()->Add(tokens->begin(), tokens->end());
    response.set_count(tokens->size());
    response.set_max_model_len(service_.model().context_tokens);
    out = serialize_message(response);
    return {};
  }

  Result<void> detokenize(const ByteBuffer& request, ByteBuffer& out) const {
    v1::DetokenizeRequest message;
    if (Result<void> parsed = parse_message(request, message); !parsed) return parsed;
    Result<std::string> text = service_.detokenize(detokenize_fields(message));
    if (!text) return tl::unexpected(text.error());
    v1::DetokenizeResponse response;
    response.set_prompt(std::move(*text));
    out = serialize_message(response);
    return {};
  }

  Result<void> plan(const ByteBuffer& request, ByteBuffer& out) const {
    v1::PlanRequest message;
    if (Result<void> parsed = parse_message(request, message); !parsed) return parsed;
    const auto planned = served_plan(plan_fields(message), service_);
    if (!planned) return tl::unexpected(planned.error());
    out = serialize_message(plan_message(*planned));
    return {};
  }

  AnswerHead answer_head(const char* id_prefix) {
    const ModelInfo& model = service_.model();
    // Mixed with the start time, so that ids differ between runs of the daemon.
    const std::uint64_t number =
        mix64(static_cast<std::uint64_t>(model.created_unix)) ^ mix64(++num_answers_);
    std::array<char, 17> digits{};
    std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(number));
    return {id_prefix + std::string(digits.data()), unix_seconds(), model.served_name,
            model.system_fingerprint};
  }

  GenerateService& service_;
  const std::shared_ptr<CallWorkers> workers_;
  const CallGate gate_;
  std::atomic<std::uint64_t> num_answers_{0};
};

}  // namespace

std::unique_ptr<grpc::Service> make_inference_service(GenerateService& service,
                                                      std::shared_ptr<CallWorkers> workers,
                                                      CallGate gate) {
  return std::make_unique<InferenceService>(service, std::move(workers), std::move(gate));
}

}  // namespace kvasir::server
