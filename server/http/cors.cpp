#include "server/http/cors.h"

#include "server/http/header_text.h"

#include <algorithm>

namespace kvasir::server {
CorsPolicy::CorsPolicy(std::string_view origins) {
  while (!origins.empty()) {
    const std::size_t comma = origins.find(',');
    std::string_view origin = trimmed(origins.substr(0, comma));
    origins.remove_prefix(comma == std::string_view::npos ? origins.size() : comma + 1);
    if (origin.ends_with('/')) origin.remove_suffix(1);  // browsers send none
    if (origin == "*") {
      any_ = true;
    } else if (!origin.empty()) {
      origins_.emplace_back(origin);
    }
  }
}

bool CorsPolicy::allows(std::string_view origin) const {
  return !origin.empty() &&
         (any_ || std::find(origins_.begin(), origins_.end(), origin) != origins_.end());
}

std::string CorsPolicy::answer_fields(std::string_view origin) const {
  if (!enabled()) return {};
  // Where the answer depends on the origin, caches must know, whoever asked.
  std::string fields = any_ ? "" : "Vary: Origin\r\n";
  if (!allows(origin)) return fields;
  fields.append("Access-Control-Allow-Origin: ").append(any_ ? "*" : origin).append("\r\n");
  fields +=
      "Access-Control-Expose-Headers: x-request-id, "
      "openai-processing-ms, retry-after, "
      "x-should-retry\r\n";
  return fields;
}

Response CorsPolicy::preflight(std::string_view origin, std::string_view methods) const {
  Response response;
  response.status = 204;
  response.extra_fields.append("Allow: ").append(methods).append("\r\n");
  response.extra_fields +=
      "Vary: Access-Control-Request-Method, Access-Control-Request-Headers\r\n";
  if (!allows(origin)) return response;
  response.extra_fields.append("Access-Control-Allow-Methods: ").append(methods).append("\r\n");
  // The star does not stand for Authorization, which must be named.
  response.extra_fields +=
      "Access-Control-Allow-Headers: Authorization, "
      "Content-Type, X-Request-Id, *\r\n"
      "Access-Control-Max-Age: 600\r\n";
  return response;
}

}  // namespace kvasir::server
