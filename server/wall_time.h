// The calendar time that goes into answers: `created` and the Date field. Nothing is measured by
// it.
#pragma once

#include <cstdint>
#include <string>

namespace kvasir::server {

[[nodiscard]] std::int64_t unix_seconds();
/// "Sun, 06 Nov 1994 08:49:37 GMT"
[[nodiscard]] std::string http_date(std::int64_t unix_time);

}  // namespace kvasir::server
