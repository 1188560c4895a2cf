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
  std::string admission = "optimistic";  // reserve, optimistic
  double kv_audit_rate = 0.0;            // 0..1
  bool kv_audit_strict = false;
  bool kv_receipt = false;    // on REST answers that do not say
  std::uint32_t threads = 0;  // 0: cgroup quota or affinity mask
  std::uint32_t max_sequences = 64;
  std::uint32_t max_waiting = 1024;
  std::uint32_t step_tokens = 512;
  std::uint32_t context_tokens = 0;  // 0: the model's
  std::string isa = "auto";          // auto, scalar, avx2, avxvnni, avx512
  std::string activations = "int8";  // int8, f32
  std::uint32_t shutdown_grace_ms = 30'000;
  // what the doors listen on, beside host and ports
  std::string http_socket;         // Unix socket; empty: none
  std::string grpc_socket;         // Unix socket; empty: none
  std::string metrics_host;        // with metrics_port; empty: host
  std::uint32_t metrics_port = 0;  // 0: /metrics is on the REST door
  // who may ask, and from where
  std::string tls_cert_path;  // PEM chain; empty: no TLS
  std::string tls_key_path;   // PEM
  std::string api_key_path;   // one key a line; empty: no keys
  std::string cors_origins;   // with commas between, or "*"; empty: no CORS
  // bounds of the doors
  std::uint32_t max_connections = 4096;  // of the REST door
  std::uint32_t max_grpc_streams = 100;  // of one connection
  std::uint64_t max_body_bytes = 8ULL << 20U;
  std::uint64_t max_header_bytes = 16ULL << 10U;
  std::uint64_t max_uri_bytes = 8ULL << 10U;
  std::uint32_t max_header_fields = 100;
  std::uint32_t header_timeout_ms = 10'000;
  std::uint32_t body_timeout_ms = 30'000;
  std::uint32_t idle_timeout_ms = 75'000;
  std::uint32_t write_timeout_ms = 30'000;
  std::uint32_t ping_interval_ms = 15'000;
  // bounds of one request
  std::uint32_t max_json_depth = 64;
  std::uint32_t max_json_values = 200'000;
  std::uint32_t max_messages = 2048;
  std::uint32_t max_prompts = 128;
  std::uint32_t max_choices = 128;
  std::uint32_t max_stop_strings = 16;
  std::uint32_t max_stop_bytes = 256;
  std::uint64_t max_template_steps = 1'000'000;
  std::uint64_t max_rendered_bytes = 32ULL << 20U;
  std::string chat_template_kwargs;  // names that requests may set, with commas between
  bool tokenizer_info = false;       // GET /tokenizer_info
  std::string ready_file;            // empty: none
  std::string log_level = "info";
  std::string log_format = "text";  // text, json
};

}  // namespace kvasir::config
