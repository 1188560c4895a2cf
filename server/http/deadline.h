// A point in time after which something is done, unless it was armed anew or disarmed before.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace kvasir::server {

/// A timer whose handler never runs once it was armed anew or disarmed. Used on one strand.
class Deadline {
 public:
  explicit Deadline(const boost::asio::any_io_executor& executor) : timer_(executor) {}
  void arm(std::chrono::milliseconds after, std::function<void()> expired);
  void disarm();

 private:
  boost::asio::steady_timer timer_;
  std::shared_ptr<std::uint64_t> version_ = std::make_shared<std::uint64_t>(0);
};

}  // namespace kvasir::server
