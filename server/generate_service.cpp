#include "server/generate_service.h"

#include "core/check.h"
#include "core/rng.h"
#include "engine/retry_after.h"
#include "server/error_map.h"
#include "server/generation_record.h"
#include "server/keyed_digest.h"
#include "server/prompt_answer.h"
#include "server/running_generation.h"
#include "server/shown_value.h"
#include "server/token_room.h"
#include "server/utf8.h"
#include "server/validate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <iterator>
#include <memory>
#include <random>
#include <string_view>
#include <type_traits>
#include <utility>

namespace kvasir::server {
namespace {

static_assert(engine::kMaxRetryAfterSeconds == kMaxRetryAfterSeconds);

/// A busy engine whose step does not end for so long is taken for stalled: a step's fixed part, and
/// what each of its tokens may take on a slow machine with a large model (some ms, here tenfold).
constexpr std::chrono::seconds kStallTimeout{60};
constexpr std::chrono::milliseconds kStallTimeoutPerToken{50};
/// What /tokenize takes of messages, before and after rendering: some seconds of work at most.
constexpr std::size_t kMaxTokenizeBytes = 1U << 20U;
/// What /detokenize makes: a vocabulary may hold very long tokens.
constexpr std::size_t kMaxDetokenizeBytes = 1U << 20U;

constexpr std::uint64_t div_ceil(std::uint64_t count, std::uint64_t per) {
  return (count + per - 1) / per;
}

std::string local_time_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &local);
  return {text.data(), length};
}

/// Templates know system, not OpenAI's newer word for it.
std::vector<text::ChatMessage> with_known_roles(std::vector<text::ChatMessage> messages) {
  for (text::ChatMessage& message : messages) {
    if (message.role == "developer") message.role = "system";
  }
  return messages;
}

std::uint64_t rendered_bytes(const std::vector<text::TextSegment>& segments) {
  std::uint64_t bytes = 0;
  for (const text::TextSegment& segment : segments) bytes += segment.text.size();
  return bytes;
}

/// What a template may put into its text.
std::uint64_t message_bytes(const text::ChatMessage& message) {
  return message.role.size() + message.content.size() + (message.name ? message.name->size() : 0) +
         (message.tool_call_id ? message.tool_call_id->size() : 0);
}

Result<void> check_tokenize_bytes(std::uint64_t bytes, const std::string& param) {
  if (bytes <= kMaxTokenizeBytes) return {};
  return fail(ErrorCode::kInvalidValue,
              param + " must be at most " + std::to_string(kMaxTokenizeBytes) + " bytes, not " +
                  std::to_string(bytes),
              param);
}

std::vector<TokenId> sorted_union(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::sort(a.begin(), a.end());
  a.erase(std::unique(a.begin(), a.end()), a.end());
  return a;
}

/// False where an echoed prompt is all there is.
bool wants_engine(const engine::Submit& submission) {
  return submission.request.stop.max_tokens > 0 || submission.request.prompt_logprobs.has_value();
}

WantedTokens wanted_tokens(const GenerateParams& params, std::uint64_t when_absent) {
  return {params.max_tokens, params.min_tokens, when_absent};
}

/// Logprobs of generated tokens that an answer may come to show.
std::uint64_t generated_entries(const GenerateParams& params,
                                const std::vector<std::uint32_t>& max_tokens) {
  if (!params.top_logprobs) return 0;
  std::uint64_t tokens = 0;
  for (const std::uint32_t of_prompt : max_tokens) tokens += of_prompt;
  return tokens * params.num_choices * (std::uint64_t{1} + *params.top_logprobs);
}

/// A call on its way to the engine.
struct Call {
  Operation operation{};
  const GenerateParams& params;
  const CallContext& context;
  std::optional<TimePoint> deadline;  // of timeout_ms
};

}  // namespace

struct GenerateService::Impl {
  ModelInfo model;
  engine::Engine& engine;
  const text::Tokenizer& tokenizer;
  const text::ChatTemplate* chat_template = nullptr;
  const Clock& clock;
  const RequestLimits limits;
  const ServiceOptions options;
  std::atomic<Readiness> readiness{Readiness::kLoading};
  std::uint64_t seed_base =
      0;  // random at start: requests without a seed differ from each other and between runs
  std::atomic<std::uint64_t> seeds_drawn{0};
  const KeyedDigest cache_scopes{};
  std::unique_ptr<Metrics> metrics = std::make_unique<Metrics>(model);

  [[nodiscard]] ValidationBounds bounds() const { return {model.vocab_size, limits}; }
  [[nodiscard]] bool alive() const;
  [[nodiscard]] Result<void> check_ready() const;
  [[nodiscard]] Result<void> check_serving() const;
  [[nodiscard]] Result<void> check_name(const std::optional<std::string>& name) const;
  [[nodiscard]] Result<void> check_bytes(std::uint64_t bytes, std::uint64_t max_tokens,
                                         const std::string& param) const;
  [[nodiscard]] Result<std::shared_ptr<Generation>> complete(const CompletionFields& fields,
                                                             WakeFunction wake,
                                                             const CallContext& context);
  [[nodiscard]] Result<std::shared_ptr<Generation>> chat(const ChatFields& fields,
                                                         WakeFunction wake,
                                                         const CallContext& context);
  template <typename Fields>
  void count_refusal(ErrorCode code, const Fields& fields, const CallContext& context) const;
  [[nodiscard]] GenerationRecord record_of(const std::vector<std::vector<TokenId>>& prompts,
                                           const std::vector<std::uint32_t>& max_tokens,
                                           const Call& call) const;
  [[nodiscard]] Call call_of(Operation operation, const GenerateParams& params,
                             const CallContext& context) const;
  [[nodiscard]] std::uint64_t cache_scope(const Call& call) const;
  [[nodiscard]] Result<void> check_wanted(const Call& call) const;
  [[nodiscard]] Result<std::vector<TokenId>> encode_prompt(const PromptInput& prompt,
                                                           std::uint64_t max_tokens,
                                                           const std::string& param) const;
  [[nodiscard]] Result<std::vector<text::TextSegment>> render(
      const std::vector<text::ChatMessage>& messages, std::string_view variables) const;
  [[nodiscard]] Result<std::vector<TokenId>> encode_rendered(
      const std::vector<text::TextSegment>& segments) const;
  [[nodiscard]] Result<std::shared_ptr<Generation>> start(
      std::vector<std::vector<TokenId>> prompts, PromptRules prompt_rules,
      const std::vector<std::uint32_t>& max_tokens, const Call& call, WakeFunction wake);
  void end_at_once(const std::vector<engine::Submit>& submissions) const;
  [[nodiscard]] AssemblyRules assembly_rules(const GenerateParams& params,
                                             std::vector<TokenId> ending) const;
};

GenerateService::GenerateService(ModelInfo model, engine::Engine& engine,
                                 const text::Tokenizer& tokenizer,
                                 const text::ChatTemplate* chat_template, const Clock& clock,
                                 RequestLimits limits, ServiceOptions options)
    : impl_(new Impl{.model = std::move(model),
                     .engine = engine,
                     .tokenizer = tokenizer,
                     .chat_template = chat_template,
                     .clock = clock,
                     .limits = std::move(limits),
                     .options = options}) {
  std::random_device device;
  impl_->seed_base = (std::uint64_t{device()} << 32U) | device();
  KVASIR_CHECK(impl_->model.vocab_size > 0);
  KVASIR_CHECK(impl_->model.context_tokens > 0);
}

GenerateService::~GenerateService() = default;

Result<std::shared_ptr<Generation>> GenerateService::complete(const CompletionFields& fields,
                                                              WakeFunction wake,
                                                              const CallContext& context) {
  auto generation = impl_->complete(fields, std::move(wake), context);
  if (!generation) impl_->count_refusal(generation.error().code, fields, context);
  return generation;
}

Result<std::shared_ptr<Generation>> GenerateService::chat(const ChatFields& fields,
                                                          WakeFunction wake,
                                                          const CallContext& context) {
  auto generation = impl_->chat(fields, std::move(wake), context);
  if (!generation) impl_->count_refusal(generation.error().code, fields, context);
  return generation;
}

Result<std::shared_ptr<Generation>> GenerateService::Impl::complete(const CompletionFields& fields,
                                                                    WakeFunction wake,
                                                                    const CallContext& context) {
  constexpr std::uint64_t kDefaultMaxTokens = 16;
  auto params = validate(fields, bounds());
  if (!params) return tl::unexpected<Error>(params.error());
  if (auto ok = check_name(fields.model); !ok) return tl::unexpected<Error>(ok.error());
  if (auto ok = check_ready(); !ok) return tl::unexpected<Error>(ok.error());
  const std::uint64_t num_sequences = std::uint64_t{params->num_choices} * fields.prompts.size();
  if (auto ok = engine.check_room(num_sequences); !ok) return tl::unexpected<Error>(ok.error());
  const Call call = call_of(Operation::kTextCompletion, *params, context);
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::uint32_t> max_tokens;
  for (std::size_t i = 0; i < fields.prompts.size(); ++i) {
    const std::string param =
        fields.prompts.size() == 1 ? "prompt" : "prompt[" + std::to_string(i) + "]";
    if (auto ok = check_wanted(call); !ok) return tl::unexpected<Error>(ok.error());
    auto prompt = encode_prompt(fields.prompts[i], params->max_tokens.value_or(1), param);
    if (!prompt) return tl::unexpected<Error>(prompt.error());
    auto limit =
        resolve_max_tokens(model, prompt->size(), wanted_tokens(*params, kDefaultMaxTokens), param);
    if (!limit) return tl::unexpected<Error>(limit.error());
    prompts.push_back(std::move(*prompt));
    max_tokens.push_back(*limit);
  }
  PromptRules rules = prompt_rules(*params);
  if (auto ok = check_prompt_logprobs(rules, prompts, params->num_choices, /*listed_once=*/false,
                                      generated_entries(*params, max_tokens));
      !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  for (std::size_t i = 0; params->echo && i < prompts.size(); ++i) {
    rules.echo.push_back(
        echo_text(fields.prompts[i], prompts[i], tokenizer, params->skip_special_tokens));
  }
  if (auto ok = check_echo(rules, params->num_choices, limits.rendered_bytes); !ok)
    return tl::unexpected<Error>(ok.error());
  return start(std::move(prompts), std::move(rules), max_tokens, call, std::move(wake));
}

Result<std::shared_ptr<Generation>> GenerateService::Impl::chat(const ChatFields& fields,
                                                                WakeFunction wake,
                                                                const CallContext& context) {
  auto params = validate(fields, bounds());
  if (!params) return tl::unexpected<Error>(params.error());
  if (auto ok = check_name(fields.model); !ok) return tl::unexpected<Error>(ok.error());
  if (auto ok = check_ready(); !ok) return tl::unexpected<Error>(ok.error());
  if (auto ok = engine.check_room(params->num_choices); !ok)
    return tl::unexpected<Error>(ok.error());
  const Call call = call_of(Operation::kChat, *params, context);
  if (auto ok = check_wanted(call); !ok) return tl::unexpected<Error>(ok.error());
  auto segments = render(fields.messages, fields.template_kwargs);
  if (!segments) return tl::unexpected<Error>(segments.error());
  if (auto ok = check_bytes(rendered_bytes(*segments), params->max_tokens.value_or(1), "messages");
      !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  auto prompt = encode_rendered(*segments);
  if (!prompt) return tl::unexpected<Error>(prompt.error());
  std::uint64_t when_absent = model.context_tokens;
  if (params->top_logprobs)
    when_absent = std::min(when_absent, max_tokens_with_logprobs(*params, 1));
  auto limit =
      resolve_max_tokens(model, prompt->size(), wanted_tokens(*params, when_absent), "messages");
  if (!limit) return tl::unexpected<Error>(limit.error());
  std::vector<std::vector<TokenId>> prompts;
  prompts.push_back(std::move(*prompt));
  PromptRules rules = prompt_rules(*params);
  if (auto ok = check_prompt_logprobs(rules, prompts, params->num_choices, /*listed_once=*/true,
                                      generated_entries(*params, {*limit}));
      !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  return start(std::move(prompts), std::move(rules), {*limit}, call, std::move(wake));
}

Result<std::vector<TokenId>> GenerateService::tokenize(const TokenizeFields& fields) const {
  if (auto ok = validate(fields, impl_->bounds()); !ok) return tl::unexpected<Error>(ok.error());
  if (auto ok = impl_->check_name(fields.model); !ok) return tl::unexpected<Error>(ok.error());
  if (fields.messages) {
    std::uint64_t bytes = 0;  // before rendering, which costs time itself
    for (const text::ChatMessage& message : *fields.messages) bytes += message_bytes(message);
    if (auto ok = check_tokenize_bytes(bytes, "messages"); !ok)
      return tl::unexpected<Error>(ok.error());
    auto segments = impl_->render(*fields.messages, {});
    if (!segments) return tl::unexpected<Error>(segments.error());
    if (auto ok = check_tokenize_bytes(rendered_bytes(*segments), "messages"); !ok)
      return tl::unexpected<Error>(ok.error());
    return impl_->encode_rendered(*segments);
  }
  return impl_->tokenizer.encode(
      *fields.prompt,
      {.add_bos = fields.add_special_tokens.value_or(true), .parse_special = false});
}

Result<std::string> GenerateService::detokenize(const DetokenizeFields& fields) const {
  if (auto ok = validate(fields, impl_->bounds()); !ok) return tl::unexpected<Error>(ok.error());
  if (auto ok = impl_->check_name(fields.model); !ok) return tl::unexpected<Error>(ok.error());
  std::vector<TokenId> tokens;
  tokens.reserve(fields.tokens.size());
  std::uint64_t bytes = 0;
  for (const std::int64_t id : fields.tokens) {
    tokens.push_back(static_cast<TokenId>(id));
    bytes += impl_->tokenizer.token_bytes_with_special(tokens.back()).size();
  }
  if (bytes > kMaxDetokenizeBytes) {
    return fail(ErrorCode::kInvalidValue,
                "tokens must be of at most " + std::to_string(kMaxDetokenizeBytes) +
                    " bytes of text, not " + std::to_string(bytes),
                "tokens");
  }
  return to_utf8(
      impl_->tokenizer.decode(tokens, /*with_special=*/true, /*strip_space_prefix=*/true));
}

Result<void> GenerateService::check_model(const std::optional<std::string>& name) const {
  return impl_->check_name(name);
}

const ModelInfo& GenerateService::model() const { return impl_->model; }
const RequestLimits& GenerateService::limits() const { return impl_->limits; }
engine::EngineStatus GenerateService::status() const { return impl_->engine.status(); }
Metrics& GenerateService::metrics() const { return *impl_->metrics; }
Readiness GenerateService::readiness() const { return impl_->readiness.load(); }
void GenerateService::set_readiness(Readiness readiness) { impl_->readiness.store(readiness); }

bool GenerateService::alive() const { return impl_->alive(); }
Result<void> GenerateService::check_serving() const { return impl_->check_serving(); }

std::uint32_t GenerateService::retry_after_seconds(const Error& error) const {
  return server::retry_after_seconds(error.code, impl_->engine.status().retry_after_seconds);
}

bool GenerateService::Impl::alive() const {
  const engine::EngineStatus now = engine.status();
  const Duration patience = kStallTimeout + model.step_tokens * kStallTimeoutPerToken;
  return !now.busy || clock.now() - now.last_progress < patience;
}

/// What never became sequences: refused, or wanted by nobody any more. The fields of the latter
/// were valid.
template <typename Fields>
void GenerateService::Impl::count_refusal(ErrorCode code, const Fields& fields,
                                          const CallContext& context) const {
  if (code != ErrorCode::kCancelled && code != ErrorCode::kDeadlineExceeded) {
    metrics->on_refused(code);
    return;
  }
  auto sequences = static_cast<std::uint64_t>(fields.n.value_or(1));
  if constexpr (std::is_same_v<Fields, CompletionFields>) sequences *= fields.prompts.size();
  metrics->on_abandoned(code == ErrorCode::kCancelled ? context.gone_cause : CancelCause::kDeadline,
                        sequences);
}

GenerationRecord GenerateService::Impl::record_of(const std::vector<std::vector<TokenId>>& prompts,
                                                  const std::vector<std::uint32_t>& max_tokens,
                                                  const Call& call) const {
  std::vector<std::uint32_t> prompt_tokens;
  std::vector<GenerationRecord::Choice> choices;
  for (std::uint32_t p = 0; p < prompts.size(); ++p) {
    prompt_tokens.push_back(static_cast<std::uint32_t>(prompts[p].size()));
    choices.insert(choices.end(), call.params.num_choices,
                   {.prompt_index = p, .max_tokens = max_tokens[p]});
  }
  return {*metrics, call.operation, call.context.arrival.value_or(clock.now()),
          std::move(prompt_tokens), choices};
}

Call GenerateService::Impl::call_of(Operation operation, const GenerateParams& params,
                                    const CallContext& context) const {
  Call call{.operation = operation, .params = params, .context = context, .deadline = {}};
  if (params.timeout) call.deadline = context.arrival.value_or(clock.now()) + *params.timeout;
  return call;
}

/// Requests share cached blocks only within a tenant and a salt. 0 is neither.
std::uint64_t GenerateService::Impl::cache_scope(const Call& call) const {
  const std::uint64_t tenant = call.context.tenant;
  const std::optional<std::string>& salt = call.params.cache_salt;
  if (tenant == 0 && !salt) return 0;
  const std::string_view tenant_bytes(reinterpret_cast<const char*>(&tenant), sizeof tenant);
  return salt ? cache_scopes.of({tenant_bytes, *salt}) : cache_scopes.of({tenant_bytes});
}

/// Asked before each costly part, so that work for nobody ends early.
Result<void> GenerateService::Impl::check_wanted(const Call& call) const {
  if (call.deadline && clock.now() >= *call.deadline) {
    return fail(ErrorCode::kDeadlineExceeded, "timeout_ms passed before the answer was complete",
                "timeout_ms");
  }
  if (call.context.gone != nullptr && call.context.gone->load())
    return fail(ErrorCode::kCancelled, "the client has gone");
  return {};
}

Result<void> GenerateService::Impl::check_ready() const {
  switch (readiness.load()) {
    case Readiness::kReady:
      if (alive()) return {};
      return fail(ErrorCode::kEngineUnavailable, "the engine makes no progress");
    case Readiness::kLoading:
      return fail(ErrorCode::kModelLoading, "the model is still loading");
    case Readiness::kDraining:
      break;
  }
  return fail(ErrorCode::kDraining, "the server is shutting down and takes no new work");
}

Result<void> GenerateService::Impl::check_serving() const {
  if (auto ready = check_ready(); !ready) return ready;
  const std::uint64_t mismatches = engine.status().audit_mismatches_total;
  if (!options.audit_strict || mismatches == 0) return {};
  return fail(ErrorCode::kEngineUnavailable,
              "the truth check found " + std::to_string(mismatches) +
                  " cached prefixes that were not what is computed (see the log)");
}

Result<void> GenerateService::Impl::check_name(const std::optional<std::string>& name) const {
  if (!name || *name == model.served_name) return {};
  if (std::find(model.aliases.begin(), model.aliases.end(), *name) != model.aliases.end())
    return {};
  return fail(ErrorCode::kModelNotFound,
              "model must be " + shown_value(model.served_name) + ", not " + shown_value(*name),
              "model");
}

/// A text of so many bytes has at least bytes / longest token tokens; one that is too long by that
/// alone is refused without tokenising it, which can take seconds.
Result<void> GenerateService::Impl::check_bytes(std::uint64_t bytes, std::uint64_t max_tokens,
                                                const std::string& param) const {
  const std::uint64_t longest = std::max<std::uint64_t>(tokenizer.longest_token_bytes(), 1);
  const std::uint64_t at_least = div_ceil(bytes, longest);
  if (at_least <= model.context_tokens) return {};
  return fail(ErrorCode::kContextLengthExceeded,
              "the prompt has at least " + std::to_string(at_least) + " tokens and max_tokens is " +
                  std::to_string(max_tokens) + ", but the context is " +
                  std::to_string(model.context_tokens) + " tokens",
              param);
}

Result<std::vector<TokenId>> GenerateService::Impl::encode_prompt(const PromptInput& prompt,
                                                                  std::uint64_t max_tokens,
                                                                  const std::string& param) const {
  if (const auto* ids = std::get_if<std::vector<std::int64_t>>(&prompt)) {
    std::vector<TokenId> tokens;
    tokens.reserve(ids->size());
    for (const std::int64_t id : *ids) tokens.push_back(static_cast<TokenId>(id));
    return tokens;
  }
  const auto& text = std::get<std::string>(prompt);
  if (auto ok = check_bytes(text.size(), max_tokens, param); !ok)
    return tl::unexpected<Error>(ok.error());
  auto tokens = tokenizer.encode(text, {.add_bos = true, .parse_special = false});
  if (tokens && tokens->empty())
    return fail(ErrorCode::kInvalidValue, param + " has no tokens", param);
  return tokens;
}

Result<std::vector<text::TextSegment>> GenerateService::Impl::render(
    const std::vector<text::ChatMessage>& messages, std::string_view variables) const {
  if (chat_template == nullptr) {
    return fail(ErrorCode::kInvalidTemplateInput,
                "this model has no chat template; use /v1/completions, or start the server with "
                "--chat-template",
                "messages");
  }
  auto segments = chat_template->render(with_known_roles(messages), /*add_generation_prompt=*/true,
                                        local_time_now(), variables);
  if (!segments) {
    Error error = segments.error();
    if (error.param.empty() && error.code == ErrorCode::kInvalidTemplateInput)
      error.param = "messages";
    return tl::unexpected<Error>(std::move(error));
  }
  return segments;
}

Result<std::vector<TokenId>> GenerateService::Impl::encode_rendered(
    const std::vector<text::TextSegment>& segments) const {
  auto tokens = tokenizer.encode_segments(segments, tokenizer.adds_bos());
  if (tokens && tokens->empty())
    return fail(ErrorCode::kInvalidTemplateInput, "messages have no tokens", "messages");
  return tokens;
}

AssemblyRules GenerateService::Impl::assembly_rules(const GenerateParams& params,
                                                    std::vector<TokenId> ending) const {
  return {.stop = params.stop,
          .ending_token_ids = std::move(ending),
          .own_stop_token_ids = params.stop_token_ids,
          .min_tokens = params.min_tokens,
          .skip_special_tokens = params.skip_special_tokens,
          .include_stop_str_in_output = params.include_stop_str_in_output,
          .logprobs = params.top_logprobs.has_value(),
          .token_ids = params.return_token_ids};
}

/// What the engine would say of sequences that have nothing to compute.
void GenerateService::Impl::end_at_once(const std::vector<engine::Submit>& submissions) const {
  for (const engine::Submit& submission : submissions) {
    engine::FinishEvent event;
    event.reason = FinishReason::kLength;
    event.usage.prompt_tokens = static_cast<std::uint32_t>(submission.request.prompt_tokens.size());
    event.at = clock.now();
    submission.sink->on_finish(std::move(event));
  }
}

Result<std::shared_ptr<Generation>> GenerateService::Impl::start(
    std::vector<std::vector<TokenId>> prompts, PromptRules prompt_rules,
    const std::vector<std::uint32_t>& max_tokens, const Call& call, WakeFunction wake) {
  if (auto ok = check_wanted(call); !ok) return tl::unexpected<Error>(ok.error());
  const GenerateParams& params = call.params;
  std::vector<TokenId> ending = params.stop_token_ids;
  if (!params.ignore_eos) ending = sorted_union(std::move(ending), tokenizer.end_of_generation());
  std::erase_if(ending, [this](TokenId id) { return id >= model.vocab_size; });

  Request shape;  // what all sequences of the request have in common
  shape.sampling = params.sampling;
  if (!params.has_seed) shape.sampling.seed = mix64(seed_base ^ seeds_drawn.fetch_add(1));
  shape.stop.min_tokens = static_cast<std::uint32_t>(params.min_tokens);
  shape.stop.stop_token_ids = ending;
  shape.top_logprobs = params.top_logprobs;
  shape.priority = params.priority;
  shape.deadline = call.deadline;
  shape.cache_salt = cache_scope(call);

  std::vector<RunningGeneration::Choice> choices;
  std::vector<engine::Submit> submissions;
  for (std::uint32_t p = 0; p < prompts.size(); ++p) {
    std::uint64_t fork_group = 0;
    for (std::uint32_t k = 0; k < params.num_choices; ++k) {
      engine::Submit submission{.id = engine.next_sequence_id(), .request = shape, .sink = {}};
      // Named by its first sequence, so that no two groups are alike.
      if (k == 0 && params.num_choices > 1) fork_group = value_of(submission.id);
      submission.request.fork_group = fork_group;
      submission.request.prompt_tokens = prompts[p];
      submission.request.sampling.choice_index = k;
      submission.request.stop.max_tokens = max_tokens[p];
      // The first choice of a prompt brings them for all.
      if (k == 0) submission.request.prompt_logprobs = prompt_rules.most_top();
      choices.push_back(
          {.sequence = submission.id, .prompt_index = p, .rules = assembly_rules(params, ending)});
      submissions.push_back(std::move(submission));
    }
  }
  GenerationRecord record = record_of(prompts, max_tokens, call);
  auto generation = std::make_shared<RunningGeneration>(
      tokenizer, std::move(prompts), std::move(choices),
      [&target = engine](const engine::Cancel& cancel) { target.cancel(cancel); }, std::move(wake),
      call.context.keeps_answer, std::move(prompt_rules),
      params.kv_receipt.value_or(options.kv_receipt) ? &model.geometry : nullptr);
  generation->set_record(std::move(record));
  for (std::uint32_t i = 0; i < submissions.size(); ++i) submissions[i].sink = generation->sink(i);
  const auto idle = std::stable_partition(submissions.begin(), submissions.end(), wants_engine);
  const std::vector<engine::Submit> without_work(std::make_move_iterator(idle),
                                                 std::make_move_iterator(submissions.end()));
  submissions.erase(idle, submissions.end());
  if (!submissions.empty()) {
    if (auto ok = engine.submit(std::move(submissions)); !ok)
      return tl::unexpected<Error>(ok.error());
  }
  end_at_once(without_work);
  metrics->on_started(static_cast<std::uint32_t>(params.num_choices));
  return generation;
}

}  // namespace kvasir::server
