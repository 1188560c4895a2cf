#include "server/http/http_shared.h"

#include "core/rng.h"
#include "server/http/session.h"

#include <random>
#include <string_view>

namespace kvasir::server {
namespace {

/// Parsing and tokenising: two, so that one long prompt does not hold all others up.
constexpr std::uint32_t kNumWorkThreads = 2;
/// A scraper or two, and who looks on.
constexpr std::uint32_t kMaxMetricsConnections = 64;

}  // namespace

HttpShared::HttpShared(const HttpOptions& server_options, GenerateService& generate_service)
    : options(server_options),
      service(generate_service),
      cors(server_options.cors_origins),
      tls(server_options.tls),
      body_bytes(server_options.max_waiting_body_bytes),
      rest_connections(server_options.max_connections),
      metrics_connections(kMaxMetricsConnections),
      work(kNumWorkThreads) {
  std::random_device device;
  id_base = (std::uint64_t{device()} << 32U) | device();
}

std::string HttpShared::new_id() {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::uint64_t bits = mix64(id_base ^ ids_made.fetch_add(1));
  std::string id(16, '0');
  for (char& digit : id) {
    digit = kHexDigits[bits & 0xFU];
    bits >>= 4U;
  }
  return id;
}

}  // namespace kvasir::server
