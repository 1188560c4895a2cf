// The executor that serves: forward pass and sampling of one batch on this machine's cores. Buffers
// are sized at construction; which sequences are in the batch, and where their blocks are, was
// decided before.
#pragma once

#include "kvcache/kv_storage.h"
#include "runtime/executor.h"
#include "runtime/kernels/kernel_table.h"
#include "runtime/model/model_config.h"
#include "runtime/model/weights.h"

#include <cstdint>
#include <memory>
#include <span>

namespace kvasir::runtime {

struct CpuExecutorOptions {
  std::uint32_t num_threads = 1;
  std::uint32_t max_step_tokens = 512;
  std::uint32_t max_sequences = 64;  // chunks of one step, and rows of logits computed at once
  std::uint32_t max_context_tokens = 0;
  Isa isa = Isa::kScalar;
};

class CpuExecutor final : public Executor {
 public:
  /// `config`, `weights` and `storage` must outlive the executor; the storage has the model's layer
  /// groups (ModelConfig::kv_geometry).
  CpuExecutor(const CpuExecutorOptions& options, const ModelConfig& config,
              const ModelWeights& weights, kvcache::KvStorage& storage);
  ~CpuExecutor() override;

  [[nodiscard]] Result<StepResult> execute(const Batch& batch) override;
  [[nodiscard]] bool same_slots(BlockId a, BlockId b, std::uint32_t num_slots) const override;

  /// Bytes that an executor with these options holds in buffers, for weights laid out as `weights`
  /// is; for the start-up memory sum.
  [[nodiscard]] static std::uint64_t buffer_bytes(const CpuExecutorOptions& options,
                                                  const ModelConfig& config,
                                                  const ModelWeights& weights);

  /// Raw logits [vocab_size] of the wanted rows of the last batch, in batch order; for tests and
  /// offline scoring. Only kept when turned on, and then for every row from first_logits_row on.
  void keep_logits(bool on);
  [[nodiscard]] std::span<const float> kept_logits(std::size_t row) const;
  [[nodiscard]] std::size_t num_kept_logits() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::runtime
