// The rows, and what is written from them: names, values, ranges and the document.
#include "config/option_table.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <sstream>

namespace kvasir::config {
namespace {

std::string replaced(std::string_view text, char from, char to) {
  std::string out(text);
  std::replace(out.begin(), out.end(), from, to);
  return out;
}

/// 1073741824 as "1GiB"; bytes that are no multiple stay a plain number.
std::string size_text(std::uint64_t bytes) {
  constexpr struct {
    unsigned shift;
    std::string_view suffix;
  } kUnits[] = {{30, "GiB"}, {20, "MiB"}, {10, "KiB"}};
  for (const auto& unit : kUnits) {
    const std::uint64_t one = 1ULL << unit.shift;
    if (bytes >= one && bytes % one == 0) {
      return std::to_string(bytes / one) + std::string(unit.suffix);
    }
  }
  return std::to_string(bytes);
}

/// The shortest decimal that reads back as the same number.
std::string share_text(double share) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), share).ptr;
  return {digits.data(), end};
}

std::string joined(const std::vector<std::string_view>& words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    out += i == 0 ? "" : i + 1 == words.size() ? " or " : ", ";
    out += words[i];
  }
  return out;
}

std::vector<OptionRow> make_table() {
  using O = ServeOptions;
  using K = OptionKind;
  constexpr unsigned kModelUsers = kServe | kGenerate | kTokenize | kBench;
  return {
      {.name = "model",
       .kind = K::kPath,
       .member = &O::model_path,
       .users = kModelUsers,
       .help = "GGUF file to serve, or `default` for the model that deploy/serve.sh fetches."},
      {.name = "served-model-name",
       .kind = K::kText,
       .member = &O::served_model_name,
       .help =
           "Names that clients may ask for, separated by commas; the first is the model's id. The "
           "file's name without its ending if unset."},
      {.name = "chat-template",
       .kind = K::kPath,
       .member = &O::chat_template_path,
       .users = kServe | kGenerate,
       .help = "File with a chat template to use in place of the model file's own."},
      {.name = "host",
       .kind = K::kText,
       .member = &O::host,
       .users = kServe | kHealthcheck,
       .help = "Address to listen on, for both doors."},
      {.name = "http-port",
       .kind = K::kNumber,
       .member = &O::http_port,
       .users = kServe | kHealthcheck,
       .help = "Port of the REST door; 0 picks a free one.",
       .max = 65535},
      {.name = "grpc-port",
       .kind = K::kNumber,
       .member = &O::grpc_port,
       .help = "Port of the gRPC door; 0 picks a free one.",
       .max = 65535},
      {.name = "http-threads",
       .kind = K::kNumber,
       .member = &O::http_threads,
       .unit = "threads",
       .help = "Threads that serve REST connections, beside the compute threads.",
       .min = 1,
       .max = 64},
      {.name = "kv-budget",
       .kind = K::kBytes,
       .member = &O::kv_budget_bytes,
       .users = kServe | kGenerate,
       .unit = "bytes",
       .help =
           "Memory for keys and values of all sequences together; at least what 32 tokens take.",
       .min = 1,
       .max = 1ULL << 44U},
      {.name = "kv-type",
       .kind = K::kChoice,
       .member = &O::kv_type,
       .users = kServe | kGenerate | kBench,
       .help = "Element type that keys and values are stored in.",
       .choices = {"f32", "f16", "bf16"}},
      {.name = "prefix-cache",
       .kind = K::kSwitch,
       .member = &O::prefix_cache,
       .help = "Keep blocks of finished sequences and reuse them for equal prefixes."},
      {.name = "admission",
       .kind = K::kChoice,
       .member = &O::admission,
       .help = "When a waiting sequence may run: optimistic is when what it is likely to need fits "
               "(when it needs more, one is stopped and goes on later, without loss), reserve is "
               "when all it can come to need fits (nothing is ever stopped).",
       .choices = {"optimistic", "reserve"}},
      {.name = "kv-audit",
       .kind = K::kShare,
       .member = &O::kv_audit_rate,
       .help = "Share of the prefix-cache hits whose keys and values are computed again and "
               "compared when there is nothing else to do. What is not cached any more by "
               "then, or is interrupted too often, is given up and counted."},
      {.name = "kv-audit-strict",
       .kind = K::kSwitch,
       .member = &O::kv_audit_strict,
       .help = "Report not ready once such a comparison has failed."},
      {.name = "kv-receipt",
       .kind = K::kSwitch,
       .member = &O::kv_receipt,
       .help = "Put `kv_cache`, what it cost, into the `usage` of REST answers whose request does "
               "not say with `kv_receipt`. gRPC answers have it unless the request says no."},
      {.name = "threads",
       .kind = K::kNumber,
       .member = &O::threads,
       .users = kServe | kGenerate | kBench,
       .unit = "threads",
       .help = "Compute threads; auto is the cgroup CPU quota or the affinity mask, the smaller.",
       .min = 1,
       .max = 1024,
       .word_for_zero = "auto"},
      {.name = "max-sequences",
       .kind = K::kNumber,
       .member = &O::max_sequences,
       .unit = "sequences",
       .help = "Sequences that run at once; more wait.",
       .min = 1,
       .max = 4096},
      {.name = "max-waiting",
       .kind = K::kNumber,
       .member = &O::max_waiting,
       .unit = "sequences",
       .help = "Sequences that may wait; past it requests get 429.",
       .min = 1,
       .max = 1'000'000},
      {.name = "step-tokens",
       .kind = K::kNumber,
       .member = &O::step_tokens,
       .users = kServe | kGenerate | kBench,
       .unit = "tokens",
       .help = "Tokens computed in one step, prefill and decode together.",
       .min = 1,
       .max = 65536},
      {.name = "context",
       .kind = K::kNumber,
       .member = &O::context_tokens,
       .users = kServe | kGenerate,
       .unit = "tokens",
       .help = "Longest prompt and answer of one sequence together; auto is the model's own.",
       .min = 2,
       .max = 1ULL << 24U,
       .word_for_zero = "auto"},
      {.name = "isa",
       .kind = K::kChoice,
       .member = &O::isa,
       .users = kServe | kGenerate | kBench,
       .help = "Instruction set of the kernels; auto is the best that this CPU has.",
       .choices = {"auto", "scalar", "avx2", "avxvnni", "avx512"}},
      {.name = "activations",
       .kind = K::kChoice,
       .member = &O::activations,
       .users = kServe | kGenerate | kBench,
       .help =
           "Inputs of linear layers with quantised weights: int8 rounds them in blocks of 32 and "
           "is several times as fast, f32 keeps them as they are.",
       .choices = {"int8", "f32"}},
      {.name = "shutdown-grace-ms",
       .kind = K::kNumber,
       .member = &O::shutdown_grace_ms,
       .unit = "ms",
       .help =
           "Time that live requests get to finish after SIGTERM or SIGINT; a second signal ends at "
           "once.",
       .max = 3'600'000},
      {.name = "http-socket",
       .kind = K::kPath,
       .member = &O::http_socket,
       .users = kServe | kHealthcheck,
       .help =
           "Unix socket that the REST door listens on as well; what is left of an earlier run is "
           "replaced."},
      {.name = "grpc-socket",
       .kind = K::kPath,
       .member = &O::grpc_socket,
       .help = "Unix socket that the gRPC door listens on as well."},
      {.name = "metrics-host",
       .kind = K::kText,
       .member = &O::metrics_host,
       .help = "Address of the listener for /metrics alone, with --metrics-port; --host if unset."},
      {.name = "metrics-port",
       .kind = K::kNumber,
       .member = &O::metrics_port,
       .help = "Port on which /metrics is served in place of the REST door's: plain HTTP, without "
               "keys.",
       .min = 1,
       .max = 65535,
       .word_for_zero = "http"},
      {.name = "tls-cert",
       .kind = K::kPath,
       .member = &O::tls_cert_path,
       .users = kServe | kHealthcheck,
       .help = "PEM certificate chain: both doors then speak TLS on their ports. Read again at "
               "SIGHUP."},
      {.name = "tls-key",
       .kind = K::kPath,
       .member = &O::tls_key_path,
       .help = "PEM private key of --tls-cert."},
      {.name = "api-key-file",
       .kind = K::kPath,
       .member = &O::api_key_path,
       .help = "File with one API key a line (# begins a comment line): requests then need one of "
               "them. Read again at SIGHUP."},
      {.name = "cors-origins",
       .kind = K::kText,
       .member = &O::cors_origins,
       .help =
           "Origins whose pages may call the REST door, separated by commas; * is any. No CORS if "
           "unset."},
      {.name = "max-connections",
       .kind = K::kNumber,
       .member = &O::max_connections,
       .unit = "connections",
       .help = "Open connections of the REST door; more are closed.",
       .min = 1,
       .max = 1'000'000},
      {.name = "max-grpc-streams",
       .kind = K::kNumber,
       .member = &O::max_grpc_streams,
       .unit = "calls",
       .help = "Open calls of one gRPC connection; more wait at the client.",
       .min = 1,
       .max = 10'000},
      {.name = "max-body",
       .kind = K::kBytes,
       .member = &O::max_body_bytes,
       .unit = "bytes",
       .help = "Longest request body and gRPC message; past it 413 or RESOURCE_EXHAUSTED.",
       .min = 1024,
       .max = 1ULL << 30U},
      {.name = "max-header",
       .kind = K::kBytes,
       .member = &O::max_header_bytes,
       .unit = "bytes",
       .help = "Longest header block and gRPC metadata; past it 431.",
       .min = 1024,
       .max = 1ULL << 20U},
      {.name = "max-uri",
       .kind = K::kBytes,
       .member = &O::max_uri_bytes,
       .unit = "bytes",
       .help = "Longest URI; past it 414.",
       .min = 256,
       .max = 1ULL << 20U},
      {.name = "max-header-fields",
       .kind = K::kNumber,
       .member = &O::max_header_fields,
       .unit = "fields",
       .help = "Most header fields of a request; past it 431.",
       .min = 1,
       .max = 10'000},
      {.name = "header-timeout-ms",
       .kind = K::kNumber,
       .member = &O::header_timeout_ms,
       .unit = "ms",
       .help = "Time that a client gets to send a request's header.",
       .min = 1,
       .max = 3'600'000},
      {.name = "body-timeout-ms",
       .kind = K::kNumber,
       .member = &O::body_timeout_ms,
       .unit = "ms",
       .help = "Time that a client gets to send a request's body.",
       .min = 1,
       .max = 3'600'000},
      {.name = "idle-timeout-ms",
       .kind = K::kNumber,
       .member = &O::idle_timeout_ms,
       .unit = "ms",
       .help = "Time that a connection may wait between two requests.",
       .min = 1,
       .max = 3'600'000},
      {.name = "write-timeout-ms",
       .kind = K::kNumber,
       .member = &O::write_timeout_ms,
       .unit = "ms",
       .help =
           "Time that a client may leave what was sent to it unread; then its request is aborted.",
       .min = 1,
       .max = 3'600'000},
      {.name = "ping-interval-ms",
       .kind = K::kNumber,
       .member = &O::ping_interval_ms,
       .unit = "ms",
       .help = "Silence after which a stream sends a comment.",
       .min = 1,
       .max = 3'600'000},
      {.name = "max-json-depth",
       .kind = K::kNumber,
       .member = &O::max_json_depth,
       .unit = "levels",
       .help = "Deepest nesting of a request's JSON.",
       .min = 4,
       .max = 512},
      {.name = "max-json-values",
       .kind = K::kNumber,
       .member = &O::max_json_values,
       .unit = "values",
       .help = "Most members and elements in a request's JSON.",
       .min = 16,
       .max = 10'000'000},
      {.name = "max-messages",
       .kind = K::kNumber,
       .member = &O::max_messages,
       .unit = "messages",
       .help = "Most messages of a chat request.",
       .min = 1,
       .max = 1'000'000},
      {.name = "max-prompts",
       .kind = K::kNumber,
       .member = &O::max_prompts,
       .unit = "prompts",
       .help = "Most prompts of a completion request.",
       .min = 1,
       .max = 4096},
      {.name = "max-choices",
       .kind = K::kNumber,
       .member = &O::max_choices,
       .unit = "choices",
       .help = "Most choices of a request: n times its prompts.",
       .min = 1,
       .max = 4096},
      {.name = "max-stop-strings",
       .kind = K::kNumber,
       .member = &O::max_stop_strings,
       .unit = "strings",
       .help = "Most stop strings of a request.",
       .min = 1,
       .max = 1024},
      {.name = "max-stop-bytes",
       .kind = K::kNumber,
       .member = &O::max_stop_bytes,
       .unit = "bytes",
       .help = "Longest stop string.",
       .min = 1,
       .max = 65536},
      {.name = "max-template-steps",
       .kind = K::kNumber,
       .member = &O::max_template_steps,
       .unit = "steps",
       .help = "Instructions that rendering a chat template may take.",
       .min = 1000,
       .max = 1'000'000'000},
      {.name = "max-rendered",
       .kind = K::kBytes,
       .member = &O::max_rendered_bytes,
       .unit = "bytes",
       .help = "Longest prompt that a chat template may make.",
       .min = 1024,
       .max = 1ULL << 32U},
      {.name = "chat-template-kwargs",
       .kind = K::kText,
       .member = &O::chat_template_kwargs,
       .help = "Variables of the chat template that requests may set, separated by commas; none if "
               "unset."},
      {.name = "tokenizer-info",
       .kind = K::kSwitch,
       .member = &O::tokenizer_info,
       .help = "Answer GET /tokenizer_info, which shows special tokens and the chat template."},
      {.name = "ready-file",
       .kind = K::kPath,
       .member = &O::ready_file,
       .help = "File that appears, whole, once requests are served: its JSON has http_port, "
               "grpc_port and pid."},
      {.name = "log-level",
       .kind = K::kChoice,
       .member = &O::log_level,
       .users = kServe | kGenerate,
       .help = "Least severe message that is logged.",
       .choices = {"debug", "info", "warn", "error"}},
      {.name = "log-format",
       .kind = K::kChoice,
       .member = &O::log_format,
       .help = "Log lines as text or as one JSON object each.",
       .choices = {"text", "json"}},
  };
}

}  // namespace

std::span<const OptionRow> option_table() {
  static const std::vector<OptionRow> kTable = make_table();
  return kTable;
}

std::string flag_name(const OptionRow& row) { return "--" + std::string(row.name); }

std::string environment_name(const OptionRow& row) {
  std::string name = "KVASIR_" + replaced(row.name, '-', '_');
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

std::string file_key(const OptionRow& row) { return replaced(row.name, '-', '_'); }

std::string value_text(const OptionRow& row, const ServeOptions& options) {
  return std::visit(
      [&](auto member) -> std::string {
        const auto& value = options.*member;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return value;
        } else if constexpr (std::is_same_v<T, bool>) {
          return value ? "true" : "false";
        } else if constexpr (std::is_same_v<T, double>) {
          return share_text(value);
        } else {
          if (value == 0 && !row.word_for_zero.empty()) return std::string(row.word_for_zero);
          return row.kind == OptionKind::kBytes ? size_text(value) : std::to_string(value);
        }
      },
      row.member);
}

std::string allowed_text(const OptionRow& row) {
  switch (row.kind) {
    case OptionKind::kText:
      return "text, not empty";
    case OptionKind::kPath:
      return "a path, not empty";
    case OptionKind::kSwitch:
      return "true or false";
    case OptionKind::kChoice:
      return joined(row.choices);
    case OptionKind::kBytes:
      return "a size from " + size_text(row.min) + " to " + size_text(row.max) +
             ", in plain bytes or with KiB, MiB or GiB";
    case OptionKind::kShare:
      return "a number from 0 to 1";
    case OptionKind::kNumber:
      break;
  }
  std::string text =
      "a whole number from " + std::to_string(row.min) + " to " + std::to_string(row.max);
  if (!row.word_for_zero.empty()) text += ", or " + std::string(row.word_for_zero);
  return text;
}

std::string placeholder(const OptionRow& row) {
  switch (row.kind) {
    case OptionKind::kText:
      return "TEXT";
    case OptionKind::kPath:
      return "FILE";
    case OptionKind::kSwitch:
      return "true|false";
    case OptionKind::kBytes:
      return "SIZE";
    case OptionKind::kShare:
      return "SHARE";
    case OptionKind::kChoice:
    case OptionKind::kNumber:
      break;
  }
  std::string text = row.kind == OptionKind::kNumber ? "N" : "";
  const auto append = [&text](std::string_view word) {
    if (!text.empty()) text += '|';
    text += word;
  };
  for (const std::string_view choice : row.choices) append(choice);
  if (!row.word_for_zero.empty()) append(row.word_for_zero);
  return text;
}

std::string config_document() {
  const ServeOptions defaults;
  std::ostringstream out;
  out << R"(# Options

Made from `config/option_table.cpp`: change the table, then run
`KVASIR_UPDATE_GOLDEN=1 build/release/tests/kvasir_tests_config`. A test fails when this file is stale.

Each option can be set in four places; a later one wins: its default, the TOML file named by `--config` or
`KVASIR_CONFIG`, the environment, a flag. The file has keys at top level only, for example:

```toml
model = "/models/smollm2.gguf"
kv_budget = "512MiB"
threads = 2
```

A value that is not allowed, an unknown key or a key given twice ends the start with exit code 2 and one line that
names the option, where it came from and what is allowed. Of a flag given twice the last one counts. An environment
variable that starts with `KVASIR_` and is no option is warned about, not refused: Kubernetes puts such variables into
pods beside a service named kvasir. (For one named kvasir-http, set `enableServiceLinks: false`: its `KVASIR_HTTP_PORT`
is a URL and will be refused.) Sizes are plain bytes or whole numbers with `KiB`, `MiB` or `GiB`; `KB`, `MB` and `GB`
are refused, because people disagree on what they mean.

The start prints a sum of memory and refuses one that does not fit. In it the weights and the KV arena (`kv_budget`, in
whole blocks) are exact, and the arena is never exceeded. The parts for the tokenizer, for running and waiting
sequences and for the process are estimates: a queue full of prompts as long as the context takes more.

| flag | file key | environment | default | allowed | meaning |
| --- | --- | --- | --- | --- | --- |
)";
  for (const OptionRow& row : option_table()) {
    const std::string value = value_text(row, defaults);
    out << "| `" << flag_name(row) << "` | `" << file_key(row) << "` | `" << environment_name(row)
        << "` | " << (value.empty() ? "unset" : "`" + value + "`") << " | " << allowed_text(row)
        << (row.unit.empty() ? "" : " (" + std::string(row.unit) + ")") << " | " << row.help
        << " |\n";
  }
  return out.str();
}

}  // namespace kvasir::config
