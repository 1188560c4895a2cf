// The transport-free middle of both doors: validate, render, tokenise, refuse what can never fit,
// submit, cancel. Wire formats are server/http's and server/grpc's; text assembly is
// stream_assembler's.
#pragma once

#include "core/clock.h"
#include "core/result.h"
#include "engine/engine.h"
#include "kvcache/kv_geometry.h"
#include "server/generation.h"
#include "server/metrics.h"
#include "server/request_fields.h"
#include "server/request_limits.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvasir::server {

/// What the doors may know of the served model.
struct ModelInfo {
  std::string served_name;
  std::vector<std::string> aliases;
  std::string root;               // file name
  std::int64_t created_unix = 0;  // start of the daemon
  std::uint32_t context_tokens = 0;
  std::uint32_t vocab_size = 0;  // logits width
  kvcache::KvGeometry geometry;
  std::uint32_t num_blocks = 0;  // of the whole KV budget
  std::uint64_t kv_budget_bytes = 0;
  std::string system_fingerprint;  // build, instruction set, KV type: outputs are bit-identical for
                                   // equal ones
  std::string kernels;             // instruction set that runs
  std::uint32_t num_threads = 0;
  std::uint32_t step_tokens = 0;    // most tokens of one step: how long it may take
  std::uint32_t query_heads = 1;    // a multiple of the geometry's KV heads
  std::uint64_t weights_bytes = 0;  // of the model file's tensors; 0: not known
};

/// What a door knows of a call beside its fields.
struct CallContext {
  std::optional<TimePoint> arrival;         // timeout_ms runs from here; absent: from the call
  const std::atomic<bool>* gone = nullptr;  // true once nobody waits any more; outlives the call
  CancelCause gone_cause = CancelCause::kClientGone;  // what `gone` means at this door
  std::uint64_t tenant = 0;   // of the API key (api_keys.h), part of the prefix cache's key
  bool keeps_answer = false;  // the door polls whatever its client does: the answer is sent at once
};

enum class Readiness : std::uint8_t { kLoading, kReady, kDraining };

struct ServiceOptions {
  bool kv_receipt = false;    // in REST's usage, where the request does not say
  bool audit_strict = false;  // a mismatch that the truth check found ends readiness
};

class GenerateService {
 public:
  /// All arguments must outlive the service; `chat_template` may be null (chat is then refused).
  GenerateService(ModelInfo model, engine::Engine& engine, const text::Tokenizer& tokenizer,
                  const text::ChatTemplate* chat_template, const Clock& clock,
                  RequestLimits limits = {}, ServiceOptions options = {});
  ~GenerateService();

  /// Validates, tokenises and submits, or says what is wrong before anything ran. Errors beside
  /// those of the fields: kQueueFull before anything is tokenised, kDeadlineExceeded, and
  /// kCancelled when the client has gone.
  [[nodiscard]] Result<std::shared_ptr<Generation>> complete(const CompletionFields& fields,
                                                             WakeFunction wake,
                                                             const CallContext& context = {});
  [[nodiscard]] Result<std::shared_ptr<Generation>> chat(const ChatFields& fields,
                                                         WakeFunction wake,
                                                         const CallContext& context = {});
  /// Bounds of both (kMaxTokenizeBytes and others in the .cpp): some seconds of work at most.
  [[nodiscard]] Result<std::vector<TokenId>> tokenize(const TokenizeFields& fields) const;
  [[nodiscard]] Result<std::string> detokenize(const DetokenizeFields& fields) const;
  /// Absent model is the served one. Errors: kModelNotFound.
  [[nodiscard]] Result<void> check_model(const std::optional<std::string>& name) const;

  [[nodiscard]] const ModelInfo& model() const;
  [[nodiscard]] const RequestLimits& limits() const;
  [[nodiscard]] engine::EngineStatus status() const;
  /// What both doors count.
  [[nodiscard]] Metrics& metrics() const;
  [[nodiscard]] Readiness readiness() const;
  void set_readiness(Readiness readiness);
  /// Whether a balancer should send work here, and why not: what readiness probes say. Errors:
  /// kModelLoading, kDraining, kEngineUnavailable (no progress, or a failed audit where the
  /// operator is strict about it; work that comes all the same is done).
  [[nodiscard]] Result<void> check_serving() const;
  /// The engine loop makes progress (or is idle).
  [[nodiscard]] bool alive() const;
  /// What Retry-After and RetryInfo say beside the error, in 1..kMaxRetryAfterSeconds; 0 where
  /// another try is of no use.
  [[nodiscard]] std::uint32_t retry_after_seconds(const Error& error) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::server
