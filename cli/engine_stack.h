// Options to a loaded model, a KV arena, an executor and an engine, checked against each other and
// against the machine. serve and generate both stand on it; doors, threads and signals are theirs.
#pragma once

#include "cli/load_model.h"
#include "cli/machine.h"
#include "cli/memory_sum.h"
#include "config/load.h"
#include "core/clock.h"
#include "engine/engine.h"
#include "kvcache/kv_storage.h"
#include "runtime/cpu_executor.h"
#include "runtime/model/pack_weights.h"
#include "server/generate_service.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace kvasir::cli {

struct EngineStack {
  SteadyClock clock;
  std::unique_ptr<LoadedModel> model;
  kvcache::KvGeometry geometry;
  std::uint32_t num_blocks = 0;
  std::uint32_t context_tokens = 0;
  CpuLimit threads;  // reason: who decided
  runtime::CpuExecutorOptions executor_options;
  runtime::Activations activations = runtime::Activations::kInt8;
  double packing_seconds = 0.0;  // weights from the file into their own memory
  MemorySum memory;
  MemoryLimit memory_limit;
  std::unique_ptr<kvcache::KvStorage> storage;
  std::unique_ptr<runtime::CpuExecutor> executor;
  std::unique_ptr<engine::Engine> engine;
  server::ModelInfo info;
  /// Called on the engine thread when an audit has found something; may be empty. Set before that
  /// thread starts.
  std::function<void()> on_audit_finding;
};

/// Throws StartupError naming where the option was set, the numbers and what is allowed.
[[nodiscard]] std::unique_ptr<EngineStack> build_engine_stack(const config::LoadedOptions& loaded);

/// What was built and what it may hold, line by line, to the log.
void log_engine_stack(const EngineStack& stack, const config::ServeOptions& options);

}  // namespace kvasir::cli
