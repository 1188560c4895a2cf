#include "tests/engine/model_engine.h"

#include "core/rng.h"
#include "runtime/kernels/dispatch.h"
#include "tests/runtime/decoder/run_sequences.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace kvasir::engine::test {
namespace {

constexpr std::uint32_t kContextTokens = 512;

kvcache::KvGeometry geometry_of(const runtime::test::TestModel& model,
                                const ModelEngineOptions& options) {
  kvcache::KvGeometry geometry = model.config.kv_geometry(options.kv_type, kBlockTokens);
  geometry.largest_chunk = options.max_step_tokens;
  return geometry;
}

runtime::CpuExecutorOptions executor_options(const ModelEngineOptions& options) {
  runtime::CpuExecutorOptions executor;
  executor.num_threads = options.num_threads;
  executor.max_step_tokens = options.max_step_tokens;
  executor.max_sequences = options.max_sequences;
  executor.max_context_tokens = kContextTokens;
  executor.isa = runtime::best_isa();
  return executor;
}

EngineOptions engine_options(const kvcache::KvGeometry& geometry,
                             const ModelEngineOptions& options) {
  EngineOptions engine;
  engine.geometry = geometry;
  engine.num_blocks = options.num_blocks;
  engine.limits.admission = options.admission;
  engine.limits.max_step_tokens = options.max_step_tokens;
  engine.limits.max_sequences = options.max_sequences;
  engine.limits.context_tokens = kContextTokens;
  engine.prefix_cache = options.prefix_cache;
  engine.audit_rate = options.audit_rate;
  return engine;
}

bool same_request(const Request& a, const Request& b) {
  return a.prompt_tokens == b.prompt_tokens && a.stop.max_tokens == b.stop.max_tokens &&
         a.stop.stop_token_ids == b.stop.stop_token_ids && a.sampling.seed == b.sampling.seed &&
         a.sampling.choice_index == b.sampling.choice_index;
}

}  // namespace

bool AnswerSink::on_token(TokenEvent event) noexcept {
  answer.tokens.push_back(event.token);
  answer.logprob_bits.push_back(std::bit_cast<std::uint32_t>(event.logprob));
  for (const TokenLogprob& best : event.top) {
    answer.top.push_back(best.token);
    answer.logprob_bits.push_back(std::bit_cast<std::uint32_t>(best.logprob));
  }
  return true;
}

Result<StepResult> WatchedExecutor::execute(const runtime::Batch& batch) {
  if (before_step) before_step(batch);
  if (std::exchange(fail_next, false)) return fail(ErrorCode::kInternal, "scripted failure");
  return inner_.execute(batch);
}

ModelEngine::ModelEngine(const runtime::test::TestModel& model, const ModelEngineOptions& options)
    : storage_(geometry_of(model, options), options.num_blocks),
      cpu_(executor_options(options), model.config, model.weights, storage_),
      executor(cpu_) {
  runtime::test::fill_with_nan(storage_);
  EngineOptions engine = engine_options(storage_.geometry(), options);
  engine.on_audit_finding = [this](const std::string& what) { findings_.push_back(what); };
  engine_ = std::make_unique<Engine>(engine, executor, clock);
}

std::vector<std::shared_ptr<AnswerSink>> ModelEngine::submit_together(
    std::vector<Request> requests) {
  std::vector<std::shared_ptr<AnswerSink>> sinks;
  std::vector<Submit> submissions;
  for (Request& request : requests) {
    sinks.push_back(std::make_shared<AnswerSink>());
    sinks.back()->id = engine_->next_sequence_id();
    submissions.push_back({sinks.back()->id, std::move(request), sinks.back()});
  }
  REQUIRE(engine_->submit(std::move(submissions)).has_value());
  return sinks;
}

std::shared_ptr<AnswerSink> ModelEngine::submit(Request request) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  return submit_together(std::move(requests))[0];
}

void ModelEngine::run_until_idle() {
  while (engine_->step()) {
  }
}

std::shared_ptr<AnswerSink> ModelEngine::run(Request request) {
  auto sink = submit(std::move(request));
  while (!sink->finish) REQUIRE(engine_->step());
  return sink;
}

Request sampled_request(std::vector<TokenId> prompt, std::uint32_t max_tokens, std::uint64_t seed) {
  Request request;
  request.prompt_tokens = std::move(prompt);
  request.sampling.seed = seed;
  request.stop.max_tokens = max_tokens;
  request.top_logprobs = 2;
  return request;
}

Request may_end(Request request) {
  const TokenId last = runtime::test::TinyShape{}.vocab_size - 1;
  request.stop.stop_token_ids = {last};
  request.sampling.logit_bias = {{last, -1e6F}};
  return request;
}

Answer beginning(Answer answer, std::size_t num_tokens) {
  REQUIRE(num_tokens <= answer.tokens.size());
  answer.tokens.resize(num_tokens);
  answer.logprob_bits.resize(3 * num_tokens);  // its own and those of the two best
  answer.top.resize(2 * num_tokens);
  return answer;
}

std::vector<TokenId> random_tokens(std::uint64_t seed, std::size_t length) {
  const std::uint32_t vocab_size = runtime::test::TinyShape{}.vocab_size;
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < length; ++i) {
    tokens.push_back(static_cast<TokenId>(mix64(mix64(seed) ^ i) % vocab_size));
  }
  return tokens;
}

const Answer& ColdRuns::answer(const Request& request) {
  const auto found = std::ranges::find_if(
      known_, [&](const Known& known) { return same_request(known.request, request); });
  if (found != known_.end()) return found->answer;
  ModelEngineOptions options;
  options.max_step_tokens = 40;
  options.prefix_cache = false;
  ModelEngine engine(model_, options);
  Request alone = request;
  alone.fork_group = 0;
  alone.priority = 0;
  known_.push_back({request, engine.run(std::move(alone))->answer});
  return known_.back().answer;
}

std::uint32_t blocks_for(const NamedModel& model, std::uint32_t num_tokens, std::uint32_t tenths,
                         const ModelEngineOptions& options) {
  const kvcache::KvGeometry geometry = geometry_of(*model.model, options);
  return static_cast<std::uint32_t>(geometry.blocks_for(num_tokens) * tenths / 10);
}

const std::vector<NamedModel>& small_models() {
  static const std::vector<NamedModel> kModels = [] {
    std::vector<NamedModel> models;
    const auto add = [&](std::string name, const runtime::test::TinyShape& shape) {
      models.push_back({std::move(name), runtime::test::make_tiny_model(shape, 7)});
    };
    add("without windows", {});
    // Of one stripe and a bit, so that it slides in every test.
    add("all with a window", {.window_tokens = 21});
    add("every other with a window", {.window_tokens = 21, .full_layer_period = 2});
    add("five of six with a window", {.family = runtime::ModelFamily::kGemma3,
                                      .num_kv_heads = 1,
                                      .num_layers = 6,
                                      .window_tokens = 16,
                                      .full_layer_period = 6});
    return models;
  }();
  return kModels;
}

}  // namespace kvasir::engine::test
