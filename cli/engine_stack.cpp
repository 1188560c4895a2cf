// Checks first, allocations last: a start that will be refused must not touch gigabytes before.
#include "cli/engine_stack.h"

#include "cli/startup_error.h"
#include "runtime/kernels/dispatch.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <new>
#include <string>
#include <system_error>
#include <vector>

namespace kvasir::cli {
namespace {

using config::LoadedOptions;
using config::origin_of;

std::uint32_t choose_context(const LoadedOptions& loaded, const LoadedModel& model) {
  const std::uint32_t longest = model.config.context_tokens;
  const std::uint32_t wanted = loaded.options.context_tokens;
  if (wanted == 0) return longest;
  if (wanted > longest) {
    throw StartupError(origin_of(loaded, "context") + ": " + std::to_string(wanted) +
                       " is more than the model's " + std::to_string(longest) +
                       " tokens; allowed: 2 to " + std::to_string(longest) + ", or auto");
  }
  return wanted;
}

CpuLimit choose_threads(const LoadedOptions& loaded) {
  if (loaded.options.threads != 0) return {loaded.options.threads, origin_of(loaded, "threads")};
  return cpu_limit("", affinity_cpus());
}

runtime::Isa choose_isa(const LoadedOptions& loaded) {
  const std::string& name = loaded.options.isa;
  if (name == "auto") return runtime::best_isa();
  const auto isa = runtime::isa_from_name(name);
  std::string known;
  for (const runtime::Isa compiled : runtime::compiled_isas()) {
    if (!runtime::cpu_supports(compiled)) continue;
    if (isa == compiled) return compiled;
    known += (known.empty() ? "" : ", ") + std::string(runtime::isa_name(compiled));
  }
  throw StartupError(origin_of(loaded, "isa") + ": " + name +
                     " is not there; allowed on this CPU: auto, " + known);
}

std::string counted(std::uint64_t count, const std::string& what) {
  return count == 1 ? "one " + what : std::to_string(count) + " " + what + "s";
}

std::uint32_t choose_blocks(const LoadedOptions& loaded, const kvcache::KvGeometry& geometry) {
  const std::uint64_t budget_bytes = loaded.options.kv_budget_bytes;
  const std::uint64_t blocks = geometry.blocks_in(budget_bytes);
  const std::uint64_t least = geometry.blocks_per_stripes();
  if (blocks < least) {
    throw StartupError(origin_of(loaded, "kv-budget") + ": " + std::to_string(budget_bytes) +
                       " bytes is less than " + counted(least, "block") +
                       ", the least that a sequence needs; allowed: " +
                       std::to_string(least * geometry.bytes_per_block()) + " bytes or more (" +
                       std::to_string(geometry.block_tokens) + " tokens of " +
                       std::to_string(geometry.bytes_per_token()) + " bytes)");
  }
  if (blocks > std::numeric_limits<std::int32_t>::max()) {
    throw StartupError(origin_of(loaded, "kv-budget") + ": more than 2^31 blocks of " +
                       std::to_string(geometry.bytes_per_block()) + " bytes");
  }
  return static_cast<std::uint32_t>(blocks);
}

/// Names everything that the bytes of an answer may depend on: build, instruction set, activations,
/// KV type, model.
std::string fingerprint(const EngineStack& stack, std::string_view kv_type,
                        std::uint64_t model_hash) {
  char hash[20];
  std::snprintf(hash, sizeof(hash), "%016llx", static_cast<unsigned long long>(model_hash));
  return "kvasir-" KVASIR_VERSION "-" + std::string(runtime::isa_name(stack.executor_options.isa)) +
         "-" + std::string(runtime::activations_name(stack.activations)) + "-" +
         std::string(kv_type) + "-" + hash;
}

/// The names that clients may ask for, the first being the model's id: the comma-separated option,
/// or the file's stem.
std::vector<std::string> served_names(const LoadedOptions& loaded,
                                      const std::filesystem::path& model_file) {
  const std::string& option = loaded.options.served_model_name;
  if (option.empty()) return {model_file.stem().string()};
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= option.size();) {
    const std::size_t end = std::min(option.find(',', begin), option.size());
    if (end > begin) names.push_back(option.substr(begin, end - begin));
    begin = end + 1;
  }
  if (names.empty()) {
    throw StartupError(origin_of(loaded, "served-model-name") + ": no name between the commas");
  }
  return names;
}

server::ModelInfo model_info(const LoadedOptions& loaded, const EngineStack& stack,
                             std::uint64_t model_hash) {
  const config::ServeOptions& options = loaded.options;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  server::ModelInfo info;
  const std::filesystem::path file(stack.model->text.file->path());
  std::vector<std::string> names = served_names(loaded, file);
  info.served_name = names.front();
  info.aliases.assign(names.begin() + 1, names.end());
  info.root = file.filename().string();
  info.created_unix = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  info.context_tokens = stack.context_tokens;
  info.vocab_size = stack.model->config.vocab_size;
  info.geometry = stack.geometry;
  info.num_blocks = stack.num_blocks;
  info.kv_budget_bytes = options.kv_budget_bytes;
  info.kernels = runtime::isa_name(stack.executor_options.isa);
  info.system_fingerprint = fingerprint(stack, options.kv_type, model_hash);
  info.num_threads = stack.threads.threads;
  info.step_tokens = options.step_tokens;
  info.query_heads = stack.model->config.num_heads;
  for (const runtime::GgufTensor& tensor : stack.model->text.file->tensors())
    info.weights_bytes += tensor.data.size();
  return info;
}

MemorySum sum_memory(const config::ServeOptions& options, const EngineStack& stack) {
  const runtime::ModelWeights planned =
      runtime::planned_weights(stack.model->weights, stack.activations);
  return memory_sum({
      .weight_bytes = runtime::packed_bytes(planned),
      .kv_block_bytes = stack.geometry.bytes_per_block(),
      .kv_blocks = stack.num_blocks,
      .executor_buffer_bytes =
          runtime::CpuExecutor::buffer_bytes(stack.executor_options, stack.model->config, planned),
      .vocabulary_tokens = stack.model->text.tokenizer->vocabulary_size(),
      .max_sequences = options.max_sequences,
      .max_waiting = options.max_waiting,
      .context_tokens = stack.context_tokens,
  });
}

/// The options that the sum is made of, each with who set it.
std::string memory_origins(const LoadedOptions& loaded) {
  std::string text;
  for (const char* name : {"kv-budget", "max-sequences", "max-waiting", "context"}) {
    text += std::string(text.empty() ? "" : ", ") + name + " (" + origin_of(loaded, name) + ")";
  }
  return text;
}

/// Moves the weights out of the file's mapping; its pages are given back.
void pack(EngineStack& stack) {
  LoadedModel& model = *stack.model;
  const TimePoint begin = stack.clock.now();
  model.weights = runtime::pack_weights(model.weights, stack.activations, stack.threads.threads,
                                        model.text.file.get());
  stack.packing_seconds = std::chrono::duration<double>(stack.clock.now() - begin).count();
}

engine::EngineOptions engine_options(const config::ServeOptions& options, const EngineStack& stack,
                                     std::uint64_t model_hash) {
  engine::EngineOptions engine;
  engine.geometry = stack.geometry;
  engine.num_blocks = stack.num_blocks;
  engine.limits.admission = options.admission == "reserve"
                                ? scheduler::AdmissionPolicy::kReserve
                                : scheduler::AdmissionPolicy::kOptimistic;
  engine.limits.max_step_tokens = options.step_tokens;
  engine.limits.max_sequences = options.max_sequences;
  engine.limits.context_tokens = stack.context_tokens;
  engine.max_waiting_sequences = options.max_waiting;
  engine.model_hash = model_hash;
  engine.prefix_cache = options.prefix_cache;
  engine.audit_rate = options.kv_audit_rate;
  engine.on_audit_finding = [&stack](const std::string& what) {
    spdlog::error("KV audit: {}", what);
    if (stack.on_audit_finding) stack.on_audit_finding();
  };
  return engine;
}

/// "26 layers", or where windows differ "22 layers with a window of 512 tokens and 4 layers".
std::string layers_text(const kvcache::KvGeometry& geometry) {
  std::string text;
  for (const kvcache::KvLayerGroup& group : geometry.groups) {
    text += (text.empty() ? "" : " and ") + counted(group.num_layers, "layer");
    if (group.window_tokens > 0) {
      text += " with a window of " + std::to_string(group.window_tokens) + " tokens";
    }
  }
  return text;
}

/// How long one sequence may get: what windows give back on the way, it does not hold.
void log_kv_room(const EngineStack& stack, const config::ServeOptions& options) {
  const kvcache::KvGeometry& geometry = stack.geometry;
  spdlog::info("KV room: {} blocks of {} bytes; a token of one sequence takes {} bytes in {}",
               stack.num_blocks, geometry.bytes_per_block(), geometry.bytes_per_token(),
               layers_text(geometry));
  const std::uint64_t fits = kvcache::longest_prompt_tokens(geometry, stack.num_blocks, 1);
  const std::uint64_t useful = geometry.blocks_for(stack.context_tokens) * options.max_sequences;
  if (fits < stack.context_tokens) {
    spdlog::warn(
        "KV room: one sequence fits up to {} tokens, fewer than the context; longer "
        "requests are refused",
        fits);
  } else if (stack.num_blocks > useful) {
    spdlog::info("KV room: {} running {} {} blocks; the other {} only keep prefixes",
                 options.max_sequences,
                 options.max_sequences == 1 ? "context needs" : "contexts need", useful,
                 stack.num_blocks - useful);
  } else {
    spdlog::info("KV room: {} at the whole context of {} tokens, {} blocks each",
                 counted(stack.num_blocks / geometry.blocks_for(stack.context_tokens), "sequence"),
                 stack.context_tokens, geometry.blocks_for(stack.context_tokens));
  }
  spdlog::info("KV room: admission {}; share of the prefix-cache hits that is audited: {}",
               options.admission, options.kv_audit_rate);
}

}  // namespace

std::unique_ptr<EngineStack> build_engine_stack(const LoadedOptions& loaded) {
  const config::ServeOptions& options = loaded.options;
  auto stack = std::make_unique<EngineStack>();
  stack->threads = choose_threads(loaded);
  stack->executor_options.isa = choose_isa(loaded);
  stack->activations =
      options.activations == "f32" ? runtime::Activations::kF32 : runtime::Activations::kInt8;
  stack->model = load_model(resolve_model_path({options.model_path, origin_of(loaded, "model")}),
                            {options.chat_template_path, origin_of(loaded, "chat-template")},
                            {options.max_template_steps, options.max_rendered_bytes});
  stack->context_tokens = choose_context(loaded, *stack->model);
  const auto kv_type = kvcache::kv_type_from_name(options.kv_type);
  if (!kv_type) {
    throw StartupError(origin_of(loaded, "kv-type") + ": " + options.kv_type +
                       " is not in this build");
  }
  stack->geometry = stack->model->config.kv_geometry(*kv_type, kvcache::kBlockTokens);
  // What a windowed group needs depends on it, so before anything is counted.
  stack->geometry.largest_chunk = options.step_tokens;
  stack->num_blocks = choose_blocks(loaded, stack->geometry);
  stack->executor_options.num_threads = stack->threads.threads;
  stack->executor_options.max_step_tokens = options.step_tokens;
  stack->executor_options.max_sequences = options.max_sequences;
  stack->executor_options.max_context_tokens = stack->context_tokens;
  stack->memory = sum_memory(options, *stack);
  stack->memory_limit = memory_limit("");
  const std::string refusal = memory_refusal(stack->memory, stack->memory_limit);
  if (!refusal.empty()) {
    throw StartupError(refusal + "; lower one of: " + memory_origins(loaded));
  }

  std::uint64_t model_hash = 0;
  try {
    // First what the system may refuse without anything having been read.
    stack->storage = std::make_unique<kvcache::KvStorage>(stack->geometry, stack->num_blocks);
    model_hash =
        runtime::model_hash(*stack->model->text.file, stack->model->config, stack->threads.threads);
    pack(*stack);
    stack->executor = std::make_unique<runtime::CpuExecutor>(
        stack->executor_options, stack->model->config, stack->model->weights, *stack->storage);
  } catch (const std::bad_alloc&) {
    throw StartupError(
        "the system refuses " + bytes_text(stack->memory.total_bytes()) +
        " of address space (see ulimit -v); lower one of: " + memory_origins(loaded));
  } catch (const std::system_error& error) {
    throw StartupError(origin_of(loaded, "threads") + ": the system refuses to start " +
                       std::to_string(stack->threads.threads) + " threads: " + error.what());
  }
  stack->engine = std::make_unique<engine::Engine>(engine_options(options, *stack, model_hash),
                                                   *stack->executor, stack->clock);
  stack->info = model_info(loaded, *stack, model_hash);
  return stack;
}

void log_engine_stack(const EngineStack& stack, const config::ServeOptions& options) {
  const runtime::ModelConfig& model = stack.model->config;
  spdlog::info("model: {} ({}, {} layers, {} words, context {} of {} tokens) from {}", model.name,
               model.architecture, model.num_layers, model.vocab_size, stack.context_tokens,
               model.context_tokens, stack.model->text.file->path());
  if (!stack.model->chat_template_warning.empty()) spdlog::warn(stack.model->chat_template_warning);
  spdlog::info("threads: {} ({} decided)", stack.threads.threads, stack.threads.reason);
  const runtime::KernelTable& kernels = runtime::kernels_for(stack.executor_options.isa);
  spdlog::info("kernels: {}: {}; KV type {}", stack.info.kernels,
               runtime::kernels_text(stack.model->weights, kernels), options.kv_type);
  spdlog::info("weights: {} packed in {:.0f} ms",
               bytes_text(runtime::packed_bytes(stack.model->weights)),
               stack.packing_seconds * 1e3);
  for (const MemoryPart& part : stack.memory.parts) {
    spdlog::info("memory: {} for {} ({})", bytes_text(part.bytes), part.name, part.how);
  }
  spdlog::info(
      "memory: {} in all (weights and KV arena are exact, the rest is estimated); {} is {}",
      bytes_text(stack.memory.total_bytes()),
      stack.memory_limit.limit_bytes == 0 ? "no limit" : bytes_text(stack.memory_limit.limit_bytes),
      stack.memory_limit.limit_bytes == 0 ? "known" : "the " + stack.memory_limit.reason);
  const std::string warning = memory_warning(stack.memory, stack.memory_limit);
  if (!warning.empty()) spdlog::warn(warning);
  log_kv_room(stack, options);
}

}  // namespace kvasir::cli
