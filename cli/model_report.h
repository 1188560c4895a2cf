// What `kvasir inspect` knows of a model file, gathered once for both of its output forms. How it
// is written is inspect.cpp's business.
#pragma once

#include "kvcache/kv_geometry.h"
#include "runtime/model/gguf_reader.h"
#include "runtime/model/model_config.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::cli {

/// One part of serving a model: possible when `problem` is empty.
struct Verdict {
  std::string_view part;  // "forward pass", "tokenizer", "chat template"
  std::string problem;
};

struct KvCost {
  std::string_view type;  // "f32", "f16", "bf16"
  std::uint32_t element_bytes = 0;
  std::uint64_t bytes_per_token = 0;
  std::uint64_t tokens_per_gib = 0;  // rounds down
};

struct TypeSum {
  std::uint64_t num_tensors = 0;
  std::uint64_t num_bytes = 0;
};

struct IsaReport {
  std::string_view name;
  bool supported_by_cpu = false;
};

struct ModelReport {
  const runtime::GgufFile* file = nullptr;
  std::optional<runtime::ModelConfig> config;  // absent when the forward pass is not supported
  std::vector<Verdict> verdicts;
  std::vector<KvCost> kv_costs;  // empty without a config
  std::map<std::string_view, TypeSum> tensor_types;
  std::vector<IsaReport> isas;  // compiled in, slowest first
  std::string_view best_isa;
  std::string kernels;  // what `auto` multiplies with, for each tensor type; empty without a config

  [[nodiscard]] bool can_be_served() const;  // a missing chat template only refuses chat requests
};

/// `file` must outlive the report.
[[nodiscard]] ModelReport report_on(const runtime::GgufFile& file);

}  // namespace kvasir::cli
