#include "server/api_document.h"

#include "server/api_routes.h"
#include "server/error_map.h"
#include "server/field_text.h"
#include "server/kv_receipt.h"
#include "server/kv_status.h"

#include <array>
#include <map>
#include <sstream>
#include <utility>

namespace kvasir::server {
namespace {

constexpr std::string_view kOpening = R"(# The interface

Made from `server/field_table.cpp`, `server/api_routes.cpp` and `server/error_map.cpp`: change those, then run
`KVASIR_UPDATE_GOLDEN=1 build/release/tests/kvasir_tests_server`. A test fails when this file is stale. The REST routes
are also an OpenAPI 3.1 document at `GET /openapi.json`; gRPC is `proto/kvasir/v1/inference.proto`, or ask by reflection.

Both doors read the same fields into the same structures, and one validator judges them, so that a request gets the same
verdict at both. The first failure answers, in this order: framing, key, JSON, types and then ranges in the order of
the tables below, what fields must be together, the model's name, readiness and a free place in the queue (before
tokens are made, so that a full server spends nothing on what it refuses), template and tokens, room in context, budget
and queue. Before that nothing is generated and no status 200 is sent, streamed or not.

- null is the same as absent.
- An integer may be written as a number without a fraction (`16.0`). Booleans and strings are not numbers.
- A field that nobody knows is accepted and counted in `kvasir_ignored_fields_total`.
- A key twice in an object, text that is not UTF-8, half a surrogate pair and anything behind the object are refused.
- On gRPC, fields have the names and meanings given here. What is an object here is a message there, and what a message
  cannot say (a list that is empty and not absent, a number for a string) cannot be wrong there.
)";

constexpr std::string_view kLimits = R"(
Bounds with a default of 16 (stop strings), 128 (prompts and choices), 256 (bytes of a stop string) and 2048 (messages)
are the operator's: `--max-stop-strings`, `--max-prompts`, `--max-choices`, `--max-stop-bytes`, `--max-messages`. So are
nesting and values of the JSON, bytes of the body, of the header and of a rendered prompt; see CONFIG.md.
)";

constexpr std::string_view kReceipt = R"(
## What an answer cost: usage.kv_cache

On gRPC in every answer's usage, unless `kv_receipt` is false; over REST where `kv_receipt` is true, or where it is absent
and the server runs with `--kv-receipt true`. It is of what has ended, so it comes with the whole answer or with a stream's
last usage: over REST a stream without `stream_options.include_usage` has none, and the running usage of
`continuous_usage_stats` is without it.

Numbers are sums over the answer's sequences (each choice of each prompt); bytes are whole blocks. Choices share blocks, so
with `n` the peaks add up to more than was ever held at once: less `shared_bytes` they do not count a block twice. A
sequence that was preempted adds what it cost each time that it ran, and its peak is the highest.

)";

constexpr std::string_view kStatus = R"(
## What the pool holds: GET /v1/kv/status (gRPC GetStatus)

All but `readiness` are of one moment: the end of the engine's last step. On REST there is also `object`, which is
`kv.status`.

)";

constexpr std::string_view kTogether = R"(
What fields must be together:

- `n` times the number of prompts is at most `--max-choices`.
- `max_tokens` may be 0 only with `echo`; `min_tokens` is at most `max_tokens`.
- `max_tokens` and `max_completion_tokens`, where both are given, are equal.
- `top_logprobs` needs `logprobs`; `stream_options` needs `stream`.
- Choices times `max_tokens` times (1 + top logprobs) is at most 1048576 where logprobs are asked for.
- An explicit `max_tokens` must fit the context and the KV budget beside the prompt; without one the answer may fill
  what is left.
- A message has `role` (system, developer, user, assistant or tool; function is an older word for tool) and `content`, a
  text or a list of parts `{"type":"text","text":...}`; a message of role tool has `tool_call_id`.
- `/tokenize` takes `prompt` or `messages`, and not both.
- `/v1/kv/plan` takes `preset`, or `layers`, `head_dim` and one of `kv_heads` and `query_heads`, or `model` or nothing (the
  served model), and only one of these; `query_heads` is a multiple of `kv_heads`, `window_pattern` needs `window_tokens`,
  and all bytes together are at most 2^53.
)";

std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string code(std::string_view text) {
  std::string out;
  if (!text.empty()) out.append("`").append(text).append("`");
  return out;
}

void write_routes(std::ostream& out) {
  out << "\n## Routes\n\n"
      << "\"Key\" says which routes need `Authorization: Bearer` when the operator set "
         "`--api-key-file`. "
         "HEAD works wherever GET does.\n\n"
      << "| method | path | key | what it is for |\n| --- | --- | --- | --- |\n";
  for (const ApiRoute& route : api_routes()) {
    out << "| " << (route.request ? "POST" : "GET") << " | " << code(route.path) << " | "
        << (route.needs_key ? "yes" : "no") << " | " << route.purpose << " |\n";
  }
}

std::string door_of(const FieldRow& row) {
  if (!row.not_on_grpc.empty()) return "REST only: " + std::string(row.not_on_grpc);
  return row.grpc_name.empty() ? "both" : "both; on gRPC " + code(row.grpc_name);
}

void write_fields(std::ostream& out, FieldUsers user, std::string_view path,
                  std::string_view method) {
  out << "\n## POST " << path << " (gRPC " << method << ")\n\n"
      << "| field | must be | when absent | meaning | door |\n| --- | --- | --- | --- | --- |\n";
  for (const FieldRow& row : field_table()) {
    if ((row.users & user) == 0 || row.standing != FieldStanding::kSupported) continue;
    const std::string absent = row.required ? "refused" : default_text(row);
    out << "| " << code(row.name) << " | " << cell(allowed_text(row, {})) << " | " << absent
        << " | " << cell(row.meaning) << " | " << door_of(row) << " |\n";
  }
}

std::string endpoints(unsigned users) {
  constexpr std::array<std::pair<FieldUsers, std::string_view>, 5> kNames = {{
      {kOfCompletions, "completions"},
      {kOfChat, "chat"},
      {kOfTokenize, "tokenize"},
      {kOfDetokenize, "detokenize"},
      {kOfPlan, "plan"},
  }};
  std::string out;
  for (const auto& [user, name] : kNames) {
    if ((users & user) != 0) out += (out.empty() ? "" : ", ") + std::string(name);
  }
  return out;
}

template <typename Record>
void write_facts(std::ostream& out, std::span<const FactRow<Record>> rows,
                 const std::string& inside_of = {}) {
  for (const FactRow<Record>& row : rows) {
    out << "| " << code(inside_of + std::string(row.name)) << " | " << cell(row.meaning) << " |\n";
    if (row.name == "layer_groups") write_facts(out, layer_group_rows(), "layer_groups[].");
  }
}

void write_receipt_and_status(std::ostream& out) {
  constexpr std::string_view kHead = "| member | meaning |\n| --- | --- |\n";
  out << kReceipt << kHead;
  write_facts(out, kv_receipt_rows());
  out << kStatus << kHead;
  write_facts(out, kv_status_rows());
}

void write_others(std::ostream& out) {
  out << "\n## Accepted, and without a say\n\n| field | meaning |\n| --- | --- |\n";
  for (const FieldRow& row : field_table()) {
    if (row.standing == FieldStanding::kAccepted)
      out << "| " << code(row.name) << " | " << cell(row.meaning) << " |\n";
  }
  out << "\n## Refused by name\n\nWith 400 `unsupported_parameter`, unless the value asks for "
         "nothing.\n\n| field | of | may be | meaning |\n| --- | --- | --- | --- |\n";
  for (const FieldRow& row : field_table()) {
    if (row.standing != FieldStanding::kRefused) continue;
    const std::string value = row.harmless == "null" ? "" : " or " + code(row.harmless);
    out << "| " << code(row.name) << " | " << endpoints(row.users) << " | absent" << value << " | "
        << cell(row.meaning) << " |\n";
  }
}

void write_errors(std::ostream& out) {
  out << "\n## Errors\n\nREST: `{\"error\":{\"message\",\"type\",\"param\",\"code\"}}`, all four "
         "always there; `param` is the path of the field at fault or null. gRPC: the status, with "
         "a "
         "google.rpc.Status in `grpc-status-details-bin` (ErrorInfo with the code as reason, "
         "BadRequest with the field, RetryInfo where trying again makes sense). When to try again "
         "is in Retry-After and in RetryInfo, in seconds: with a full queue an estimate of when "
         "what runs leaves a place, 1 to "
      << kMaxRetryAfterSeconds << ".\n\n"
      << "| code | HTTP | type | gRPC | try again |\n| --- | --- | --- | --- | --- |\n";
  std::map<std::pair<int, std::string_view>, ErrorMapping> rows;  // by status, then code
  for (int i = 0; i <= static_cast<int>(ErrorCode::kInternal); ++i) {
    const ErrorMapping& mapping = error_mapping(static_cast<ErrorCode>(i));
    rows.emplace(std::pair(mapping.http_status, mapping.code), mapping);
  }
  for (const auto& [key, mapping] : rows) {
    out << "| " << code(mapping.code) << " | " << mapping.http_status << " | " << code(mapping.type)
        << " | " << grpc_status_name(mapping.grpc_status) << " | "
        << (mapping.retryable() ? "yes" : "no") << " |\n";
  }
}

}  // namespace

std::string api_document() {
  std::ostringstream out;
  out << kOpening;
  write_routes(out);
  write_fields(out, kOfCompletions, "/v1/completions", "Complete, CompleteStream");
  write_fields(out, kOfChat, "/v1/chat/completions", "Chat, ChatStream");
  write_fields(out, kOfTokenize, "/tokenize", "Tokenize");
  write_fields(out, kOfDetokenize, "/detokenize", "Detokenize");
  write_fields(out, kOfPlan, "/v1/kv/plan", "Plan");
  out << kLimits << kTogether;
  write_others(out);
  write_receipt_and_status(out);
  write_errors(out);
  return out.str();
}

}  // namespace kvasir::server
