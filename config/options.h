// Every option of the daemon, once: plain structs, the unit in the name, the default in the
// initialiser. Their flags, environment names, bounds and help are rows of option_table; nothing
// here is parsed.
#pragma once

#include <cstdint>
#include <string>

namespace kvasir::config {

struct ServeOptions {
  std::string model_path = "default";  // a GGUF file, or "default": the model that deploy/ fetches
  std::string served_model_name;       // empty: the file's stem; else names with commas between
  std::string chat_template_path;      // empty: the file's own
  std::string host = "127.0.0.1";
  std::uint32_t http_port = 8080;   // 0 picks a free one
  std::uint32_t grpc_port = 50051;  // 0 picks a free one
  std::uint32_t http_threads = 1;
  std::uint64_t kv_budget_bytes = 1ULL << 30U;
  std::string kv_type = "f16";  // f32, f16, bf16
  bool prefix_cache = true;
  std::uint32_t threads = 0;  // 0: cgroup quota or affinity mask
  std::uint32_t max_sequences = 64;
  std::uint32_t max_waiting = 1024;
  std::uint32_t step_tokens = 512;
  std::uint32_t context_tokens = 0;  // 0: the model's
  std::string isa = "auto";          // auto, scalar, avx2, avxvnni, avx512
  std::string activations = "int8";  // int8, f32
  std::uint32_t shutdown_grace_ms = 30'000;
  std::string ready_file;  // empty: none
  std::string log_level = "info";
  std::string log_format = "text";  // text, json
};

}  // namespace kvasir::config
