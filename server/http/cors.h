// Cross-origin rules: which pages of other origins may call the REST door, and the fields that tell
// their browsers so. Nothing of a request is repeated but an origin that the operator listed.
#pragma once

#include "server/http/response.h"

#include <string>
#include <string_view>
#include <vector>

namespace kvasir::server {

class CorsPolicy {
 public:
  /// `origins` with commas between, or "*" for any; empty: no cross-origin rules at all.
  explicit CorsPolicy(std::string_view origins);

  [[nodiscard]] bool enabled() const { return any_ || !origins_.empty(); }
  /// Whole lines for every answer to a request with this Origin (empty: it had none).
  [[nodiscard]] std::string answer_fields(std::string_view origin) const;
  /// The answer to OPTIONS where `methods` are allowed; answer_fields() come beside it.
  [[nodiscard]] Response preflight(std::string_view origin, std::string_view methods) const;

 private:
  [[nodiscard]] bool allows(std::string_view origin) const;

  bool any_ = false;
  std::vector<std::string> origins_;
};

}  // namespace kvasir::server
