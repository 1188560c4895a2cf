#include "server/http/deadline.h"

#include <utility>

namespace kvasir::server {

void Deadline::arm(std::chrono::milliseconds after, std::function<void()> expired) {
  timer_.expires_after(after);
  timer_.async_wait([version = version_, armed = ++*version_,
                     expired = std::move(expired)](const boost::system::error_code& ec) {
    if (!ec && *version == armed) expired();
  });
}

void Deadline::disarm() {
  ++*version_;
  timer_.cancel();
}

}  // namespace kvasir::server
