#include "cli/http_options.h"

#include "cli/build_info.h"
#include "server/utf8.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace kvasir::cli {
namespace {

/// How a token is spelled in a template; nothing where there is none, or no text.
std::optional<std::string> spelling(const text::Tokenizer& tokenizer,
                                    const std::optional<TokenId>& token) {
  if (!token) return std::nullopt;
  std::string text(tokenizer.token_bytes_with_special(*token));
  if (!server::is_utf8(text)) return std::nullopt;
  return text;
}

server::TokenizerInfo tokenizer_info(const LoadedModel& model) {
  const text::Tokenizer& tokenizer = *model.text.tokenizer;
  server::TokenizerInfo info;
  info.bos_token = spelling(tokenizer, tokenizer.bos());
  info.eos_token = spelling(tokenizer, tokenizer.eos());
  if (model.chat_template && server::is_utf8(model.chat_template->source()))
    info.chat_template = model.chat_template->source();
  return info;
}

}  // namespace

server::HttpOptions http_options(const config::ServeOptions& options, const EngineStack& stack) {
  using std::chrono::milliseconds;
  server::HttpOptions http;
  http.host = options.host;
  http.port = static_cast<std::uint16_t>(options.http_port);
  http.socket_path = options.http_socket;
  http.metrics_host = options.metrics_host;
  if (options.metrics_port != 0)
    http.metrics_port = static_cast<std::uint16_t>(options.metrics_port);
  http.cors_origins = options.cors_origins;
  if (options.tokenizer_info) http.tokenizer_info = tokenizer_info(*stack.model);
  http.num_threads = options.http_threads;
  http.max_connections = options.max_connections;
  http.max_body_bytes = options.max_body_bytes;
  // The longest body alone always fits, though its string may have grown to twice its bytes.
  http.max_waiting_body_bytes = std::max<std::uint64_t>(http.max_waiting_body_bytes,
                                                        2 * options.max_body_bytes + (1ULL << 20U));
  http.max_header_bytes = static_cast<std::uint32_t>(options.max_header_bytes);
  http.max_uri_bytes = static_cast<std::uint32_t>(options.max_uri_bytes);
  http.max_header_fields = options.max_header_fields;
  http.header_timeout = milliseconds(options.header_timeout_ms);
  http.body_timeout = milliseconds(options.body_timeout_ms);
  http.idle_timeout = milliseconds(options.idle_timeout_ms);
  http.write_timeout = milliseconds(options.write_timeout_ms);
  http.ping_interval = milliseconds(options.ping_interval_ms);
  http.version = KVASIR_VERSION;
  http.commit = build_commit();
  http.build = build_type();
  return http;
}

}  // namespace kvasir::cli
